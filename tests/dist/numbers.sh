#!/usr/bin/env bash
# numbers.sh DTRAIN INTERPOSE: every number that a run reports is compared with another source: arithmetic, another file
# of the run, the kernel, or a sleep that was added to one part of it. No speed is checked.
library=$(realpath "$2")
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
small_run

fields() { # file, event, names …: a line of values for each event; "?" where there is none
    local file=$1 event=$2
    shift 2
    awk -v event="\"event\":\"$event\"" -v names="$*" 'index($0, event) {
        n = split(names, name, " ")
        for (i = 1; i <= n; i++)
            printf "%s ", match($0, "\"" name[i] "\":[^,}]*") ? substr($0, RSTART + length(name[i]) + 3, RLENGTH - length(name[i]) - 3) : "?"
        print "" }' "$file"
}
follows() { # what, program of awk over stdin, which calls is(what, got, want, share of want that it may be off), -v …
    local what=$1 program=$2
    shift 2
    check "$what" awk "$@" '
        function near(got, want, share) { return got >= want - share * (want < 0 ? -want : want) && got <= want + share * (want < 0 ? -want : want) }
        function is(what, got, want, share) { checks++; if (!near(got, want, share)) { print NR ": " what " is " got ", not " want; bad = 1 } }
        '"$program"'
        END { exit bad || checks == 0 }'
}
total() { # sum of a column of stdin
    awk '{ sum += $1 } END { printf "%.12g\n", sum }'
}
rows() { # run: of profile.json, one a line
    { tr -d '\n\t' <"runs/$1/profile.json"; echo; } | tr '{' '\n'
}
phases() { # run, lane, names …: seconds of rank 0, of at most two ranks, in these rows of profile.json
    local run=$1 lane=$2
    shift 2
    rows "$run" | awk -v lane="\"lane\":\"$lane\"" -v names="$*" -F '"' '
        BEGIN { n = split(names, name, ",") }
        function value(of) { return match($0, "\"" of "\":[^,}]*") ? substr($0, RSTART + length(of) + 3, RLENGTH - length(of) - 3) : 0 }
        index($0, lane) { for (i = 1; i <= n; i++) if (index($0, "\"name\":\"" name[i] "\""))
            sum += value("slowest_rank") == 0 ? value("max_seconds") : 2 * value("seconds") - value("max_seconds") }
        END { print 1000 * sum }'
}

# --- arithmetic: three epochs of a small file, validated twice
cp data/val-00000.h5 small.h5
run=(small.ini run.steps=45 data.train=small.h5 data.micro_batch=2 log.eval_every=20 log.eval_batches=3)
start=$(date +%s%N)
check "three epochs" "$dtrain" "${run[@]}" run.name=one >one.log 2>&1
wall=$((($(date +%s%N) - start) / 1000000))
"$dtrain" --check "${run[@]}" run.name=plan >plan.txt 2>&1
metrics=runs/one/metrics.jsonl
tokens=$(sed -n 's/^training data: .* \([0-9]*\) tokens, .*/\1/p' plan.txt)
epoch=$(((tokens - 1) / 48 / 8))
check "more than two epochs of $epoch steps" test $epoch -gt 5 -a $((2 * epoch)) -lt 45
fields $metrics train step tokens tokens_per_s step_ms epoch lr data_wait_ms comm_wait_ms idle_ms >train.txt
check "a line for each step" test "$(wc -l <train.txt)" = 45
follows "train lines" '
    { is("tokens", $2, 384 * $1, 0); is("tokens_per_s", $3 * $4 / 1000, 384, 1e-7)
      is("epoch", $5, int(($1 - 1) / epoch), 0)
      is("lr", $6, $1 <= 3 ? 3e-3 * $1 / 3 : 3e-4 + 2.7e-3 * (1 + cos(atan2(0, -1) * ($1 - 3) / 42)) / 2, 1e-6)
      if (!($7 + $8 <= $4 && $9 >= 0)) { print "waits of " $7 " and " $8 " in a step of " $4; bad = 1 } }' -v epoch=$epoch <train.txt
fields $metrics train loss loss_z skipped >losses.txt
follows "deviations of the losses" '
    { d = $1 - mean; is("skipped", $3 == "false", 1, 0)
      if (NR <= 20) is("the first have none: null", $2 == "null", 1, 0)
      else is("1000 + loss_z", 1000 + $2, 1000 + d / sqrt(variance), 1e-6)
      most = NR <= 20 ? 1e9 : 6 * sqrt(variance); d = d > most ? most : d < -most ? -most : d
      mean += d / NR; variance = (1 - 1 / NR) * (variance + d * d / NR) }' <losses.txt
check "the checkpoint: $(fields $metrics checkpoint step path)" test "$(fields $metrics checkpoint step path)" = '45 "runs/one/checkpoints/step-00000045" '
follows "steps fill the time that the profile gives them" '{ is("their sum", $1, $2, 0.1) }' <<<"$(cut -d' ' -f4 train.txt | total) \
    $(phases one phase 'reading data,forward,backward,summing gradients,optimizer,agreeing on stops and saves,waiting for the device')"
follows "idle_ms is no time in which a step computes" '{ is("idle or computing", $1 + $2 <= $3, 1, 0) }' <<<"$(cut -d' ' -f9 train.txt | total) \
    $(phases one phase 'forward,backward,optimizer') $(phases one phase "$(rows one | sed -n '/start-up/d; s/.*"lane":"phase","name":"\([^"]*\)".*/\1/p' | paste -sd,)")"
check "… less than the run took" awk -v wall=$wall '{ sum += $4 } END { exit !(sum > 0 && sum < wall) }' train.txt
fields $metrics eval step tokens loss perplexity >eval.txt
check "two validations and that of the end" test "$(wc -l <eval.txt)" = 3
follows "eval lines" '{ is("tokens", $2, 3 * 8 * 48, 0); is("perplexity", $4, exp($3), 1e-6) }' <eval.txt
best=$(sort -g -k3 eval.txt | head -n 1)
follows "state.json" '{ is("step", $1, 45, 0); is("best_step", $2, best_step, 0); is("best_loss", $3, best, 1e-8) }' \
    -v best_step="${best%% *}" -v best="$(cut -d' ' -f3 <<<"$best")" \
    <<<"$(sed 's/{/{"event":"state",/' runs/one/state.json | fields /dev/stdin state step best_step best_loss)"
check "it is complete" grep -q '"state":"complete",.*"reason":""' runs/one/state.json
"$dtrain" eval "${run[@]}" run.name=one >eval.json
follows "dtrain eval" '{ is("loss", $2, loss, 1e-8); is("tokens", $1, 3 * 8 * 48, 0); is("perplexity", $3, exp($2), 1e-9) }' \
    -v loss="$(tail -n 1 eval.txt | cut -d' ' -f3)" <<<"$(fields eval.json eval tokens loss perplexity)"

# --- what is read: the tokens of the files, and each window once in an epoch
"$dtrain" verify small.h5 >verify.txt 2>&1
check "dtrain verify has the tokens of --check: $(cat verify.txt)" grep -q "^good  small.h5: $tokens tokens, uint8, vocabulary 256, checksums match" verify.txt
"$dtrain" order "${run[@]}" --steps 1:$((epoch + 1)) >order.txt
follows "dtrain order" '
    { is("step", $1, 1 + int((NR - 1) / 8), 0); is("slot", $2, (NR - 1) % 8, 0); is("part of a window", $4 % 48, 0, 0)
      is("the window ends in the file", $4 + 49 <= tokens, 1, 0); seen[$4]++; again += seen[$4] > 1 && $1 <= epoch }
    END { is("windows of an epoch that come again", again + 0, 0, 0); is("lines", NR, 8 * (epoch + 1), 0) }' -v epoch=$epoch -v tokens="$tokens" <order.txt

# --- the console: the same numbers, shorter; the rate is smoothed
flops=$((6 * (32 * 128 + 64 * (2 + 32) + 2 * 64 + 64 * 32) * 2 + 27 * 64 * 16 * 2 + 6 * 256 * 32)) # of a token, as src/model has it
check "--check knows them" grep -q "$(printf '%.2f' "$(awk -v f=$flops 'BEGIN { print f / 1e6 }')") MFLOP per token" plan.txt
paste -d' ' <(sed -n 's|^.*step \([0-9]*\)/45  loss \([^ ]*\)  norm \([^ ]*\)  lr \([^ ]*\)  \([0-9]*\) tokens/s  \([^ ]*\) GFLOP/s.*|\1 \2 \3 \4 \5 \6|p' one.log) \
    <(fields $metrics train step loss grad_norm lr tokens_per_s) >console.txt
follows "the console" '
    { rate = NR <= 2 ? $11 : 0.9 * rate + 0.1 * $11
      is("step", $1, $7, 0); is("loss", $2, $8, 1e-4); is("norm", $3, $9, 6e-3); is("lr", $4, $10, 6e-3)
      is("tokens/s", $5, rate, 1e-3); is("GFLOP/s", $6, rate * flops / 1e9, 0.05 / (rate * flops / 1e9) + 1e-6) }' -v flops=$flops <console.txt
follows "validation on the console" '{ is("loss", $2, $6, 1e-4); is("perplexity", $3, $7, 1e-3); is("tokens", $4, $8, 0) }' <<<"$(paste -d' ' \
    <(sed -n 's/^.*step \([0-9]*\)  validation loss \([^ ]*\)  perplexity \([^ ]*\)  over \([0-9]*\) tokens.*/\1 \2 \3 \4/p' one.log) \
    <(fields $metrics eval step loss perplexity tokens))"

# --- the profile: its FLOPs are those of the model, and its table equals its JSON
for role in forward dX dW; do # a third each
    follows "FLOPs of the products, $role" '{ is("FLOPs", $1, 15 * 384 * (flops - 27 * 64 * 16 * 2), 1e-9) }' -v flops=$flops \
        <<<"$(rows one | sed -n 's/.*"lane":"op","name":"gemm '$role'".*"flops":\([^,]*\),.*/\1/p' | total)"
done
rows one |
    sed -n 's/.*"count":\([^,]*\),"seconds":\([^,]*\),.*"bytes":\([^,]*\),"flops":\([^,]*\),.*/\1 \2 \3 \4/p' >json.txt
follows "its head" '{ is("steps", $1, 45, 0); is("timed_steps", $2, 45, 0); is("ranks", $3, 1, 0) }' \
    <<<"$(rows one | sed -n 's/.*"steps":\([^,]*\),"timed_steps":\([^,]*\),"ranks":\([^,]*\),.*/\1 \2 \3/p')"
follows "one rank is the slowest, and has no limits" '{ is("max_seconds", $2, $1, 1e-9); is("slowest_rank", $3, 0, 0); is("floor_seconds", $4, 0, 0) }' \
    <<<"$(rows one | sed -n 's/.*"seconds":\([^,]*\),"max_seconds":\([^,]*\),"slowest_rank":\([^,]*\),.*"floor_seconds":\([^,}]*\)}.*/\1 \2 \3 \4/p')"
sed -n 's/^  [a-zA-Z].\{27\}\(.*\)/\1/p' runs/one/profile.txt >table.txt
check "as many rows" test "$(wc -l <json.txt)" = "$(wc -l <table.txt)"
whole=$(rows one | sed -n 's/.*"ranks":1,"seconds":\([^,}]*\).*/\1/p')
follows "the run's seconds" '{ is("they", $1, $2, 6e-4 / $2) }' <<<"$(sed -n '1s/.*, \([0-9.]*\) s;.*/\1/p' runs/one/profile.txt) $whole"
follows "profile.txt" '
    { sub("%", "", $7); is("count", $5, $1, 1e-9); is("seconds", $6, $2, 1e-4 / $2)
      is("share", $7 + 0, 100 * $2 / whole, 0.06 / (100 * $2 / whole) + 1e-3); is("ms each", $11, 1000 * $2 / $1, 6e-5 / (1000 * $2 / $1) + 1e-6)
      is("GFLOP/s", $12 == "-" ? 0 : $12, $4 / $2 / 1e9, $4 > 0 ? 0.06 / ($4 / $2 / 1e9) : 0)
      is("GB/s", $13 == "-" ? 0 : $13, $3 / $2 / 1e9, $3 > 0 ? 6e-3 / ($3 / $2 / 1e9) : 0) }' \
    -v whole="$whole" <<<"$(paste -d' ' json.txt table.txt)"

# --- the plan: rows of memory follow from the sizes, and the parts of a batch multiply to the batch
plan() { # dtrain --check of two ranks with these keys; a line of its memory in MiB
    ranks 2 --check small.ini model.d_model=256 data.batch=24 data.micro_batch=3 "$@" 2>&1
}
mib() { # row, of the plan on stdin
    sed -n "s/^  $1  *\([0-9.]*\) MiB/\1/p"
}
plan >whole.txt
plan optim.shard=true >shard.txt
check "the tree of all ranks' micro-batches" grep -q '^sums: one binary tree over 8 micro-batches' <(plan comm.reduce=reproducible)
parameters=$(sed -n 's/^model: \([0-9.]*\) M parameters.*/\1/p' whole.txt)
follows "memory" '{ is("weights", $1, 4 * $5 / 1.048576, 0.03); is("gradients", $2, $1, 0.03); is("optimizer states", $3, 2 * $1, 0.03)
    is("sharding", $6 - $7, saved, 0.03); is("half of the states, on the device and in the snapshot", 2 * 4 * $5 / 1.048576, saved, 0.03) }' -v saved="$(sed -n 's/^optim.shard saves \([0-9.]*\) MiB.*/\1/p' shard.txt)" \
    <<<"$(mib weights <whole.txt) $(mib gradients <whole.txt) $(mib 'optimizer states' <whole.txt) $(mib 'optimizer states' <shard.txt) $parameters \
        $(mib total <whole.txt) $(mib total <shard.txt)"
follows "the total" '/^memory per rank/ { on = 1 } on && / MiB$/ && !/total|free now|reserved|on the device/ { sum += $(NF - 1); rows++ }
    / total / { is("it", $(NF - 1), sum, 0.06 * rows / sum) }' <whole.txt
follows "the batch" '/^batch: / { is("ranks x micro-batches x sequences", $13 * $16 * $19, $2, 0); is("tokens", $8, $2 * $5, 0); tokens = $8 }
    /^arrays: / { is("KiB", $(NF - 3), 12 * 48 * (4 + 4 + 1) / 1024, 0.01) }
    /^training data/ { windows = $(NF - 3) }
    /^steps: / { is("an epoch", $3, int(windows / 24), 0); is("total tokens", $6, $2 * tokens, 5e-3) }' <<<"$(tr -d , <whole.txt)"

# --- the duration of the steps that are left, from the end of metrics that are longer than what is read of them, however
# short their lines are
mkdir runs/long
cp -r runs/one/checkpoints runs/one/config.resolved.ini runs/long/
for more in '"loss":1.23456789,"grad_norm":1.23456789,"lr":0.000123456789,"tokens":123456,' ''; do
    for ((step = 1; step <= 2000; step++)); do
        printf '{"event":"train","step":%d,%s"step_ms":%d,"tokens_per_s":1234.56789}\n' $step "$more" $step
    done >runs/long/metrics.jsonl
    "$dtrain" --check small.ini data.train=small.h5 data.micro_batch=2 run.name=long run.steps=145 >long.txt 2>&1
    follows "$(grep ^duration long.txt)" '
        { is("steps left", $3, 100, 0); is("the last step", $6, 2000, 0); is("the first is not the run\047s", $5 > 1 && $5 < 1800, 1, 0)
          is("the median", $4, ($5 + $6) / 2, 5e-3); is("seconds", 60 * $1 + $2, $3 * $4 / 1000, 0.02) }' <<<"$(sed -n \
        's/^duration: about \([0-9]*\):\([0-9]*\) for \([0-9]*\) steps of \([0-9.e+]*\) ms: the median of steps \([0-9]*\) to \([0-9]*\) of.*/\1 \2 \3 \4 \5 \6/p' long.txt)"
done

# --- waits: for data under slow reads, for gradients and sharded weights under slow messages of the other rank
slow() { # what FAULT says, n, arguments …
    FAULT="$1 at=1 times=0" LD_PRELOAD=$library ranks "${@:2}"
}
if ! is_sanitized; then # which must be loaded first
    check "slow reads" slow "call=read path=data/train do=4" 1 small.ini run.name=read data.prefetch=1 >read.log 2>&1
    waited=$(fields runs/read/metrics.jsonl train data_wait_ms | total)
    follows "waiting for data" '{ is("it", $1, $2, 0.3); is("it", $1 >= 60, 1, 0) }' <<<"$waited $(phases read phase 'reading data')"
    check "a rank that reads slowly" slow "call=read path=data/train rank=1 do=4" 2 small.ini run.name=lagging >lagging.log 2>&1
    follows "rank 1 is the slowest reader" '{ is("it", $1, 1, 0); is("the other is faster: the mean", $2 < 0.9 * $3, 1, 0) }' <<<"$(rows lagging | sed -n \
        's/.*"name":"reading a block".*"seconds":\([^,]*\),"max_seconds":\([^,]*\),"slowest_rank":\([^,]*\),.*/\3 \1 \2/p')"
    wide=(small.ini run.steps=6 model.d_model=96 data.seq_len=16 optim.shard=true)
    check "slow messages" slow "call=mpi rank=1 do=3" 2 "${wide[@]}" run.name=gather >gather.log 2>&1
    fields runs/gather/metrics.jsonl train step tokens tokens_per_s step_ms >two.txt
    follows "train lines of two ranks" '{ is("tokens", $2, 128 * $1, 0); is("tokens_per_s", $3 * $4 / 1000, 128, 1e-7) }' <two.txt
    follows "their steps" '{ is("their sum", $1, $2, 0.1) }' <<<"$(cut -d' ' -f4 two.txt | total) $(phases gather phase \
        'reading data,forward,backward,summing gradients,optimizer,gathering weights,agreeing on stops and saves,waiting for the device')"
    # Two norm blocks of 65,536 elements of the model's 161,280 are sharded: each step sums them and gathers their
    # weights.
    comm_bytes() { rows gather | sed -n "s/.*\"lane\":\"comm\",\"name\":\"$1\".*\"bytes\":\([^,]*\),.*/\1/p"; }
    follows "bytes of collectives" '{ is("reduce-scatter", $1, 6 * 131072 * 4, 0); is("all-gather", $2, $1, 1e-3); is("all-reduce", $3, 6 * 30208 * 4, 0.02) }' \
        <<<"$(comm_bytes reduce-scatter) $(comm_bytes all-gather) $(comm_bytes all-reduce)"
    waited=$(fields runs/gather/metrics.jsonl train comm_wait_ms | total)
    sums=$(phases gather phase 'summing gradients') gathers=$(phases gather phase 'gathering weights')
    follows "waiting for others" '{ is("it", $1, $2 + $3, 0.1); is("it", $1 >= 20, 1, 0); is("gathering is a part of it", $3 > 0.15 * $2, 1, 0) }' \
        <<<"$waited $sums $gathers"
    # The last save waits for itself, and for the save before it if a step is shorter than that.
    check "a slow disk" slow "call=fsync path=checkpoints do=30" 1 small.ini run.name=disk checkpoint.every=11 >disk.log 2>&1
    fields runs/disk/metrics.jsonl checkpoint step write_ms stall_ms >saved.txt
    check "two checkpoints" test "$(cut -d' ' -f1 saved.txt | tr '\n' ' ')" = "11 12 "
    follows "writing" '{ is("it", $1, $2, 0.3); is("it", $1 >= 2 * 5 * 30, 1, 0) }' <<<"$(cut -d' ' -f2 saved.txt | total) \
        $(phases disk checkpoint 'write,publish,waiting for the snapshot')"
    follows "stalls" '{ is("they are no more than " $2 ": " $1, $1 <= 1.02 * $2, 1, 0); is("they", $1 >= 5 * 30, 1, 0) }' <<<"$(cut -d' ' -f3 saved.txt | total) \
        $(phases disk phase 'saving a checkpoint')"
    # The last step improves, but its checkpoint is lost, and the run with it.
    lost=(small.ini run.name=lost run.steps=4 log.eval_every=1 log.eval_batches=2 checkpoint.best=true)
    slow "call=fsync path=step-00000004 do=enospc" 1 "${lost[@]}" >lost.log 2>&1
    fields runs/lost/metrics.jsonl eval loss >lost.txt
    check "a checkpoint that is lost fails: $(cat runs/lost/state.json)" grep -q '"state":"failed","step":4,' runs/lost/state.json
    follows "the best that is there" '{ is("best_step", $1, 3, 0); is("best_loss", $2, three, 1e-8); is("the lost one is better", four < three, 1, 0) }' \
        -v three="$(sed -n 3p lost.txt)" -v four="$(sed -n 4p lost.txt)" <<<"$(sed 's/{/{"event":"state",/' runs/lost/state.json |
        fields /dev/stdin state best_step best_loss)"
    # Two steps take 0.4 s each, because their metrics are written that slowly. The time is printed in whole seconds.
    check "a run that is resumed" slow "call=write path=runs/disk/metrics do=400" 1 small.ini run.name=disk run.steps=14 >resumed.log 2>&1
    follows "the rate of a run that was resumed" '{ time = 60 * $2 + $3
        is("tokens/s", $1 * (time - 0.5) <= 2 * 384 && $1 <= 2 * 384 / 0.8 && ($1 + 1) * (time + 0.51) >= 2 * 384, 1, 0) }' \
        <<<"$(sed -n 's/^dtrain: total time \([0-9]*\):\([0-9]*\) for 2 steps, \([0-9]*\) tokens.*/\3 \1 \2/p' resumed.log)"
fi

check "a checkpoint as often as the clock says" "$dtrain" small.ini run.name=minutes run.steps=5 checkpoint.{every=0,minutes=1e-9} >minutes.log 2>&1
check "… comes with the first step: $(fields runs/minutes/metrics.jsonl checkpoint step | xargs)" test "$(fields runs/minutes/metrics.jsonl checkpoint step | head -n 1)" = '1 '

# --- a trace of all steps has the seconds of the profile
check "a traced run" "$dtrain" small.ini run.name=traced log.trace_steps=1:12 >traced.log 2>&1
for name in forward backward optimizer scan_backward adamw "filling a batch"; do # the reader may begin before step 1
    follows "the trace: $name" '{ is("seconds", $1, reader && $1 > 0 && $1 < $2 ? $1 : $2, 1e-3); is("microseconds of the last", $3 > 0, 1, 0) }' \
        -v reader=$([ "$name" = "filling a batch" ] && echo 1 || echo 0) <<<"$(sed -n \
        "s/.*\"name\":\"$name\",\"ts\":[^,]*,\"dur\":\([^,}]*\)[,}].*/\1/p" runs/traced/trace-1-12.json | awk '{ sum += $1; last = $1 } END { printf "%.9g", sum / 1e6 }') \
        $(rows traced | grep -v '"validation op"' | sed -n "s/.*\"name\":\"$name\",\"count\":[^,]*,\"seconds\":\([^,]*\),.*/\1/p" | total) 1"
done

# --- a policy with an average of its weights: a loss is that of its heads, each with its weight
sed '/^vocab_size/d' small.ini >policy.ini
policy=(policy.ini model.heads='a:bernoulli*2 b:huber*2@0.5 c:categorical*3' model.frame_size=5 data.{train,val}=synthetic:frames
    data.normalize=false optim.ema=0.9 log.eval_batches=2 run.name=policy)
check "a policy" "$dtrain" "${policy[@]}" >policy.log 2>&1
timeout 60 "$dtrain" eval "${policy[@]}" >policy.json 2>policy.txt
heads() { # event: the loss, and those of the heads
    sed -n "/\"event\":\"$1\"/s/.*\"loss\":\([^,]*\),.*\"a\":{\"loss\":\([^,]*\),.*\"b\":{\"loss\":\([^,]*\),.*\"c\":{\"loss\":\([^,]*\),.*/\1 \2 \3 \4/p"
}
for event in train eval; do
    follows "losses of heads, $event" '{ is("the loss", $1, $2 + $3 / 2 + $4, 1e-6) }' <<<"$(heads $event <runs/policy/metrics.jsonl)"
done
follows "dtrain eval of a policy" '{ for (i = 1; i <= 4; i++) is("loss " i, $i, $(i + 4), 1e-8) }' <<<"$(heads eval <policy.json) $(heads eval <runs/policy/metrics.jsonl)"
follows "the average is what improves" '{ is("best_loss", $1, $2, 1e-8) }' <<<"$(sed -n 's/.*"best_loss":\([^,}]*\).*/\1/p' runs/policy/state.json) \
    $(fields runs/policy/metrics.jsonl eval ema_loss)"

# --- memory, as the kernel reports it while the process is stopped
"$dtrain" small.ini run.name=memory run.steps=1000000 log.every=1000000 >memory.log 2>&1 &
job=$!
wait_for_step memory 20
kill -STOP $job
resident=$(awk '/^VmRSS/ { print $2 * 1024 / 1e6 }' /proc/$job/status)
follows "memory_mb" '{ is("it", $1, resident, 0.02) }' -v resident="$resident" <<<"$(fields runs/memory/metrics.jsonl train memory_mb | tail -n 1)"
kill -KILL $job
wait $job 2>/dev/null

# --- every number has a check, above or in the test named here; a new field needs one
names() { # prefix, files …: fields, those of a policy's heads too
    cat "${@:2}" | tr -d '\n\t' | grep -oE '"[a-z_0-9]+":' | tr -d '":' | sort -u | sed "s/^/$1 /"
}
for event in train eval checkpoint; do
    names $event <(cat runs/*/metrics.jsonl | grep "\"event\":\"$event\"")
done >found.txt
{ names state runs/*/state.json; names profile runs/*/profile.json; names trace <(grep '"ph":"X"' runs/traced/trace*); names json eval.json policy.json; } >>found.txt
while read -r what fields; do
    for field in $fields; do echo "$what $field"; done
done >known.txt <<'EOF'
train event step epoch loss lr tokens step_ms tokens_per_s data_wait_ms comm_wait_ms memory_mb loss_z skipped
train grad_norm in test_golden_mamba; idle_ms; accuracy error in dist_heads
train heads a b c
eval event step loss perplexity ema_loss tokens heads a b c
eval scores in test_scores_2: accuracy error balanced_accuracy f1 auc mae rmse r2
checkpoint event step path stall_ms write_ms
state state step reason best_step best_loss
profile rows lane name count seconds max_seconds slowest_rank bytes flops steps timed_steps ranks
profile floor_seconds in dist_profile
trace ph pid tid name ts dur; args bytes flops in test_trace
json event loss perplexity tokens heads a b c; bits_per_byte accuracy in dist_best
json model confusion in dist_heads; scores in test_scores_2: accuracy error balanced_accuracy f1 auc mae rmse r2
EOF
sed -i 's/[;:]$//' known.txt
check "fields without a check: $(sort -u found.txt | comm -23 - <(sort -u known.txt) | paste -sd,)" test -z "$(sort -u found.txt | comm -23 - <(sort -u known.txt))"
finish
