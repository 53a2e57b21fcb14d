#!/usr/bin/env bash
# The moving average of the weights, the best checkpoint, and stopping without improvement: each follows its definition
# and has the same bits after a resume.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
small_run
evals() { # run, field: of its eval lines
    sed -n 's/.*"event":"eval","step":\([0-9]*\),.*"'"$2"'":\([^,}]*\).*/\1 \2/p' "runs/$1/metrics.jsonl"
}
state() { # run, field of state.json
    sed -n 's/.*"'"$2"'":"\{0,1\}\([^",}]*\).*/\1/p' "runs/$1/state.json"
}
lowest() { # run, field: step and value of the lowest
    evals "$1" "$2" | sort -g -k2,2 -s | head -n 1
}

# The average: on one rank, on two, resumed, switched on late.
run=(small.ini run.steps=20 optim.ema=0.9 checkpoint.every=5 checkpoint.keep=9 log.eval_every=5)
last=checkpoints/step-00000020
same() {
    same_bits "$1" "$2" && cmp "$1/ema.safetensors" "$2/ema.safetensors"
}
check "training with an average" "$dtrain" "${run[@]}" run.name=ema >ema.log 2>&1
check "the weights are those of a run without it" "$dtrain" "${run[@]/optim.ema=0.9/optim.ema=0}" run.name=plain >plain.log 2>&1
check "… to the bit" same_bits runs/ema/$last runs/plain/$last
check "… which has none" test ! -e runs/plain/$last/ema.safetensors
check "… and no loss of it" bash -c "! grep -q ema_loss runs/plain/metrics.jsonl"
check "the loss of the weights is that of a run without it" cmp <(evals ema loss) <(evals plain loss)
check "MANIFEST lists the average" grep -q ' ema.safetensors$' runs/ema/$last/MANIFEST
check "both losses are reported: $(tail -n 2 runs/ema/metrics.jsonl | head -n 1)" test "$(evals ema ema_loss | wc -l)" -eq 4
check "… and differ" bash -c "! cmp -s <(echo '$(evals ema ema_loss)') <(echo '$(evals ema loss)')"
check "training on two ranks" ranks 2 "${run[@]}" run.name=two >two.log 2>&1
check "… gives the same losses of the average" same_losses <(evals two ema_loss |
    sed 's/\(.*\) \(.*\)/"event":"train","step":\1,"loss":\2,"grad_norm":0,/') <(evals ema ema_loss |
    sed 's/\(.*\) \(.*\)/"event":"train","step":\1,"loss":\2,"grad_norm":0,/') 1e-5
mkdir -p runs/resumed/checkpoints
cp -r runs/two/checkpoints/step-00000010 runs/resumed/checkpoints
check "resuming" ranks 2 "${run[@]}" run.name=resumed >resumed.log 2>&1
check "… gives the same bits" same runs/resumed/$last runs/two/$last
evaluate() { # run, arguments …
    "$dtrain" eval "${run[@]}" run.name="$@" | sed -n 's/.*"loss":\([^,]*\),.*/\1/p'
}
near() {
    awk -v a="$1" -v b="$2" 'BEGIN { d = a - b; exit !(a > 0 && d < 1e-6 && -d < 1e-6) }'
}
check "dtrain eval --ema has the loss of validation" near "$(evaluate ema --ema)" "$(evals ema ema_loss | tail -n 1 | cut -d' ' -f2)"
check "… and without --ema that of the weights" near "$(evaluate ema)" "$(evals ema loss | tail -n 1 | cut -d' ' -f2)"
for n in 1 2; do
    ranks $n eval "${run[@]}" run.name=ema --positions >positions.json 2>/dev/null
    check "$n ranks: the losses of positions are the loss, and its bits those of bytes: $(cat positions.json)" awk -v RS='[,{}]' -F'"?:' '
        $1 == "\"loss" { loss = $2 }
        $1 == "\"bits_per_byte" { bits = $2 }
        $1 ~ /^"[0-9]+$/ { to = substr($1, 2); sum += $2 * (to - from); from = to }
        END { exit !(from == 48 && loss > 0 && (sum / 48 - loss) ^ 2 < 1e-12 && (bits * log(2) - loss) ^ 2 < 1e-12) }' positions.json
done
check "… whose accuracy validation reports" near "$(sed -n 's/.*"accuracy":\([^,]*\),.*/\1/p' positions.json)" "$(evals ema accuracy | tail -n 1 | cut -d' ' -f2)"
# Classes by length of documents: those of a/ are in one class, those of b/ in another, and c/ has documents of other
# lengths within the windows of two micro-batches.
for lengths in "a 33 40 64" "b 600 1000" "c 1 2 3 5 20 100 150"; do
    read -r name sizes <<<"$lengths"
    mkdir "$name.texts"
    for size in $sizes; do
        head -c "$size" words.txt >"$name.texts/$(printf %04d "$size")"
    done
    check "documents of $sizes bytes" "$dtrain" pack -o "$name" --val 0 --vocab 128 "$name.texts" >"$name.log" 2>&1
done
for n in 1 2 4; do
    # In validation, ranks have neighbouring windows, also where they take turns in training (reproducible sums of sharded gradients).
    ranks $n eval "${run[@]}" run.name=ema data.val='a/*.h5:1 b/*.h5:1 c/*.h5:1' data.micro_batch=2 optim.shard=gradients comm.reduce=reproducible \
        log.eval_batches=2 --documents >documents.json 2>/dev/null
    check "$n ranks: the losses by length of documents are those of their sources: $(cat documents.json)" awk -v RS='},?' -F'[{":,]+' '
        !accuracy && match($0, /"accuracy":[^,]*/) { accuracy = substr($0, RSTART + 11, RLENGTH - 11) }
        NF > 4 && $(NF - 1) == "accuracy" { right += $NF * $(NF - 2); all += $(NF - 2); NF -= 2 }
        NF > 4 { name = $(NF - 4); loss[name] = $(NF - 2); tokens[name] = $NF }
        function same(x, y) { return (loss[x] - loss[y]) ^ 2 < 1e-24 * loss[y] ^ 2 && tokens[x] == tokens[y] }
        END {
            for (i = 1; i <= 256; i *= 2)
                if (i != 64) { loss["c"] += loss[i] * tokens[i]; tokens["c"] += tokens[i]; counts = counts " " (tokens[i] + 0) }
            loss["c"] /= tokens["c"]
            exit !(all > tokens[1024] && right > 0 && (right / all - accuracy) ^ 2 < 1e-24 && tokens[1024] == 16 * 48 && same(64, "a/*.h5") && same(1024, "b/*.h5") && same("c", "c/*.h5") && counts == " 1 2 3 5 0 20 100 109")
        }' documents.json
    check "… and dtrain pack says how many bytes tokens of another vocabulary are" awk -v RS='[,{}]' -F'"?:' '
        !($1 in value) { value[$1] = $2 }
        END { loss = value["\"loss"]; exit !(loss > 0 && (value["\"bits_per_byte"] * log(2) - loss) ^ 2 < 1e-12) }' documents.json
done
ranks 2 eval "${run[@]}" run.name=ema data.val='a/*.h5,b/*.h5,c/*.h5' data.carry_state=true data.shuffle=false --documents >carried.json 2>/dev/null
check "windows in another order have the same documents: $(cat carried.json)" test "$(grep -o '"[0-9]*":{"loss":[^,]*,"tokens":[0-9]*' carried.json |
    sed 's/"\([0-9]*\)":.*:/\1:/' | paste -sd' ')" = "1:1 2:2 4:3 8:5 32:20 64:96 128:100 256:109 1024:1584"
# A model whose logits are all equal predicts token 0, which is right for three of four bytes. Two bits are drawn at
# random: each is right in every second row, and both in every fourth (2,000 rows: within 0.05, five deviations).
overwrite runs/ema/$last zero backbone.embeddings.weight 0 $((256 * 32)) '\0\0\0\0'
for ((i = 0; i < 200; i++)); do printf '\0\0\1\0'; done >raw.bin
check "bytes" "$dtrain" pack -o raw --val 0 --format u8 raw.bin >raw.log 2>&1
check "bits" "$dtrain" pack -o bits --val 0 --rows 2000 --length 2 parity >bits.log 2>&1
refused "--documents without document starts" "raw/train-00000.h5 does not say where documents start" \
    "$dtrain" eval "${run[@]}" run.name=zero run.init_from=zero data.val='raw/*.h5' --documents
for n in 1 2; do
    ranks $n eval "${run[@]}" run.name=zero run.init_from=zero data.val='raw/*.h5' >raw.json 2>/dev/null
    check "$n ranks: the accuracy of bytes: $(cat raw.json)" grep -q '"accuracy":0.75,"tokens":768,"bits_per_byte":8' raw.json
    ranks $n eval "${run[@]}" run.name=zero run.init_from=zero data.{train,val}='bits/*.h5' data.seq_len=2 >bits-$n.json 2>/dev/null
    check "$n ranks: the accuracy of pairs and of their rows: $(cat bits-$n.json)" awk -v RS='[,{}]' -F'"?:' '{ value[$1] = $2 }
        END { exit !((value["\"accuracy"] - 0.5) ^ 2 < 0.0025 && (value["\"rows_right"] - 0.25) ^ 2 < 0.0025 && value["\"tokens"] == 4000) }' bits-$n.json
done
check "… the same on two ranks" cmp bits-1.json bits-2.json
ranks 2 eval "${run[@]}" run.name=zero run.init_from=zero data.{train,val}='bits/*.h5' data.seq_len=2 data.batch=48 >padded.json 2>/dev/null
check "… and where padding fills the last batch: $(cat padded.json)" cmp bits-1.json padded.json
# Windows of the other strand are for training.
{ echo '>chr1'; tr -cd a-z <words.txt | tr a-z ACGTACGTACGTACGTACGTACGTAC | head -c 2000; } >dna.fa
check "DNA" "$dtrain" pack -o dna --val 0 --format fasta dna.fa >dna.log 2>&1
for reversed in false true; do
    "$dtrain" eval "${run[@]}" run.name=ema data.{train,val}='dna/*.h5' data.reverse_complement=$reversed >strand-$reversed.json 2>/dev/null
done
check "validation reads one strand: $(cat strand-true.json)" cmp strand-false.json strand-true.json
check "in bf16" "$dtrain" "${run[@]}" run.name=bf16 run.precision=bf16 >bf16.log 2>&1
check "… the average is rounded like the weights" near "$(evaluate bf16 run.precision=bf16 --ema)" "$(evals bf16 ema_loss | tail -n 1 | cut -d' ' -f2)"
mkdir -p runs/late/checkpoints
cp -r runs/plain/checkpoints/step-00000010 runs/late/checkpoints
check "switched on late" "$dtrain" "${run[@]}" run.name=late >late.log 2>&1
check "… it starts from the weights" grep -q 'moving average of the weights starts from those of .*step-00000010' late.log
"$dtrain" eval "${run[@]}" run.name=plain --ema >none.log 2>&1
check "an average that is not there: exit code" test $? -eq 2
check "… and a message" grep -q 'step-00000020 has no moving average of the weights' none.log
# A decay of 0.5 over three updates, computed from the weights of four checkpoints, which dtrain wrote.
check "the first steps" "$dtrain" small.ini run.name=first run.steps=3 optim.warmup_steps=1 optim.ema=0.5 checkpoint.every=1 \
    checkpoint.keep=9 data.val= >first.log 2>&1
check_python "… average = average + (weights - average) / 2" - <<'P'
import json, struct, sys
def tensor(step, name):
    data = open(f"runs/first/checkpoints/step-{step:08d}/{name}", "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    entry = json.loads(data[8:8 + size])["backbone.norm_f.weight"]
    begin, end = entry["data_offsets"]
    return struct.unpack(f"<{(end - begin) // 4}f", data[8 + size + begin:8 + size + end])
average = [1.0] * len(tensor(1, "model.safetensors")) # the norm's initial weights
for step in (1, 2, 3):
    average = [a + 0.5 * (w - a) for a, w in zip(average, tensor(step, "model.safetensors"))]
    worst = max(abs(a - b) for a, b in zip(average, tensor(step, "ema.safetensors")))
    if worst > 1e-6: # fp32 rounds values near 1
        sys.exit(f"step {step}: {worst}")
P

# The best checkpoint stays whatever else is kept, on any ranks; with a moving average its loss counts.
# On random tokens a model of text becomes worse the more it learns.
worse=(data.val=synthetic:random log.eval_batches=2 log.eval_every=2 checkpoint.best=true)
best=(small.ini "${worse[@]}" run.steps=30 checkpoint.keep=1)
for n in 1 2; do
    name=best-$n
    check "$n ranks: training" ranks $n "${best[@]}" run.name=$name >$name.log 2>&1
    read -r step loss <<<"$(lowest $name loss)"
    folder=$(printf 'step-%08d' "$step")
    check "$n ranks: the lowest loss, $loss at $step, is not the last" test "$step" -lt 30
    check "$n ranks: its checkpoint is kept" test -e runs/$name/checkpoints/"$folder"/MANIFEST
    check "$n ranks: … besides the newest one" test "$(ls -d runs/$name/checkpoints/step-* | wc -l)" -eq 2
    check "$n ranks: the link leads there" test "$(readlink runs/$name/checkpoints/best)" = "$folder"
    check "$n ranks: state.json names it" test "$(state $name best_step)" = "$step"
    check "$n ranks: it evaluates to that loss" near "$loss" "$(ranks $n eval "${best[@]}" \
        run.resume=runs/$name/checkpoints/best | sed -n 's/.*"loss":\([^,]*\),.*/\1/p')"
done
"$dtrain" small.ini data.val=synthetic:random run.name=best-1 run.steps=1000000 checkpoint.every=0 >stopped.log 2>&1 &
job=$!
check "resumed: training is under way" wait_for_step best-1 32
kill -USR1 $job
wait $job
check "resumed and stopped without a validation: state.json still names the best: $(cat runs/best-1/state.json)" \
    test "$(state best-1 state | tr -d '"') $(state best-1 best_step)" = "stopped $(lowest best-1 loss | cut -d' ' -f1)"
check "with an average" "$dtrain" "${best[@]}" run.name=best-ema optim.ema=0.9 >best-ema.log 2>&1
check "… the average's loss counts" test "$(readlink runs/best-ema/checkpoints/best)" = \
    "$(printf 'step-%08d' "$(lowest best-ema ema_loss | cut -d' ' -f1)")"

check "no step is saved twice" test -z "$(for run in runs/best-*; do grep -o '"event":"checkpoint","step":[0-9]*' "$run/metrics.jsonl" | sort | uniq -d; done)"

# A stop may leave little time, so the last step is not validated.
"$dtrain" small.ini run.name=hurried run.steps=1000000 log.eval_every=1 log.eval_batches=1 >hurried.log 2>&1 &
job=$!
check "hurried: training is under way" wait_for_step hurried 5
kill -USR1 $job
wait $job
check "hurried: the last step is not validated: $(tail -n 2 runs/hurried/metrics.jsonl)" \
    test "$(evals hurried loss | tail -n 1 | cut -d' ' -f1)" -lt "$(steps_done hurried)"

# Patience: the run stops and says why. With a larger patience it continues as if that had been set from the start.
name=patient
patience=(small.ini "${worse[@]}" run.steps=30 optim.schedule=constant)
check "a run without an end to its patience" "$dtrain" "${patience[@]}" run.name=endless >endless.log 2>&1
check "training stops without improvement" "$dtrain" "${patience[@]}" run.name=$name run.patience=3 >$name.log 2>&1
read -r step loss <<<"$(lowest $name loss)"
check "… three evaluations after its best, of step $step" test "$(steps_done $name)" -eq $((step + 6))
check "… before its end" test $((step + 6)) -lt 30
check "… and says why" grep -q "stopped after step .*: the validation loss has not improved on .* (step $step) in 3 evaluations" $name.log
check "… state.json, too" grep -q '"state":"stopped".*has not improved on .*(run.patience)' runs/$name/state.json
check "… and saves" test -e "$(printf 'runs/%s/checkpoints/step-%08d/MANIFEST' $name $((step + 6)))"
cp runs/$name/metrics.jsonl before.jsonl
check "the same command again" "$dtrain" "${patience[@]}" run.name=$name run.patience=3 >again.log 2>&1
check "… trains no step" cmp runs/$name/metrics.jsonl before.jsonl
check "… and says why" grep -q 'has not improved on' again.log
check "… and state.json still names its best" test "$(state $name best_step)" = "$step"
check "a run that ends when its patience does" "$dtrain" "${patience[@]/run.steps=30/run.steps=$((step + 6))}" run.name=end run.patience=3 >end.log 2>&1
check "… is complete: $(cat runs/end/state.json)" grep -q '"state":"complete"' runs/end/state.json
check "more patience goes on" ranks 1 "${patience[@]}" run.name=$name run.patience=1000 >more.log 2>&1
check "… to the end, with the bits of a run that never stopped" same_bits runs/$name/checkpoints/step-00000030 \
    runs/endless/checkpoints/step-00000030
check "… and the same best" test "$(readlink runs/$name/checkpoints/best)" = "$(readlink runs/endless/checkpoints/best)"

# Counters are saved: a run that was cut off anywhere stops at the same step.
mkdir -p runs/cut/checkpoints
check "every step's checkpoint" "$dtrain" "${patience[@]}" run.name=every run.patience=3 checkpoint.every=1 checkpoint.keep=0 \
    >every.log 2>&1
for cut in 3 $((step + 1)) $((step + 4)); do
    rm -rf runs/cut
    mkdir -p runs/cut/checkpoints
    for i in $(seq "$cut"); do
        cp -r "$(printf 'runs/every/checkpoints/step-%08d' "$i")" runs/cut/checkpoints
    done
    check "cut after step $cut" "$dtrain" "${patience[@]}" run.name=cut run.patience=3 >cut.log 2>&1
    check "… it stops at the same step" test "$(steps_done cut)" -eq $((step + 6))
    check "… with the same best" test "$(readlink runs/cut/checkpoints/best)" = "$(printf 'step-%08d' "$step")"
done
rm -rf runs/cut
mkdir -p runs/cut/checkpoints
cp -r "$(printf 'runs/every/checkpoints/step-%08d' $((step + 1)))" runs/cut/checkpoints
check "the best checkpoint is gone" "$dtrain" "${patience[@]/run.steps=30/run.steps=$((step + 3))}" run.name=cut >gone.log 2>&1
check "… that is said" grep -q "the best checkpoint so far, is missing" gone.log
check "… and the next one counts" test "$(readlink runs/cut/checkpoints/best)" = "$(printf 'step-%08d' $((step + 2)))"
finish
