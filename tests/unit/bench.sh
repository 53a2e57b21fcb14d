# `dtrain bench` at tiny shapes: every op that the model calls is in the table, lines of JSON parse, and wrong options
# are refused. No time is checked.
set -eu
export COLUMNS=1000 # messages are whole lines
dtrain=$1
ops=$2 # the file with the list of ops
size="--d-model 24 --n-layer 2 --seq-len 33 --batch 2 --vocab 100 --d-state 4 --threads 1 --seconds 0.001"

fail() {
    echo "$1"
    exit 1
}

# One object on each line: fields in quotes with a string or a finite number, and nothing else.
check_json() {
    local field='"[a-z0-9_]+":("[^"\\]*"|-?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?)'
    [ -s "$1" ] || fail "$1 is empty"
    if grep -vE "^\{$field(,$field)*\}$" "$1"; then
        fail "$1: that is no line of JSON"
    fi
}

# A field of each line of JSON.
values() {
    sed -nE 's/.*"'"$1"'":"?([^,"}]*).*/\1/p' "$2"
}

# Compares lines "got want" on stdin, which may differ by this share and by the rounding of printed numbers.
alike() { # what, share, rounding
    awk -v what="$1" -v share="$2" -v rounding="$3" '
        { d = $1 - $2; if (!((d < 0 ? -d : d) <= share * $2 + rounding)) { print what ": " $1 ", not " $2; bad = 1 } }
        END { exit bad || NR == 0 }' || fail "$1 is not what follows from the other numbers"
}

check_width() { # file
    awk 'length($0) > 80 { print; bad = 1 } END { exit bad }' "$1" || fail "$1: lines of more than 80 columns"
}

# All except the ops of other kinds of models.
list=$(sed -nE 's/^ *[WX]\(([a-z0-9_]+)\).*/\1/p' "$ops" |
    grep -E '^(gemm|embed|rmsnorm_residual|conv1d|scan|xent|sum_squares|update|adamw|checksum|cast|accumulate|commit|stamp|spin)')
[ "$(echo "$list" | wc -l)" -ge 15 ] || fail "$ops: the list of ops was not found"

for precision in fp32 bf16; do
    "$dtrain" bench $size --precision $precision --warm --json >ops.json
    check_json ops.json
    COLUMNS=80 "$dtrain" bench $size --precision $precision --micro-batch 1 >ops.txt
    # The ops of other kinds of layers follow below.
    for op in $(echo "$list" | grep -vE '^(rnn|silu_gate|attention|ssd|gated_rmsnorm|policy|bias)'); do
        grep -q "\"op\":\"$op\"" ops.json || fail "$precision: no line of JSON for $op"
        grep -q "^$op " ops.txt || fail "$precision: no row for $op"
    done
    for shape in in_proj x_proj dt_proj out_proj head; do
        for role in forward dX dW; do
            grep -q "\"shape\":\"$shape $role " ops.json || fail "$precision: no GEMM $shape $role"
        done
    done
    # A step of two layers calls each op this many times, however many steps are measured.
    for op in "embed_forward 1" "scan_forward 2" "scan_backward 2" "xent 1" "adamw 1"; do
        [ "$(grep "\"op\":\"${op% *}\"" ops.json | values calls /dev/stdin)" = "${op#* }" ] || fail "$precision: not ${op#* } calls of ${op% *}"
    done
    # The first layer's norm has nothing to pass on, so it has another row.
    [ "$(grep '"op":"rmsnorm_residual_backward"' ops.json | grep -c '"shape":"66x24\( first\)\?"')" -eq 2 ] || fail "$precision: the first norm"
    # A lane's multiply-add is two FLOPs.
    paste -d' ' <(values glane_per_s ops.json) <(values gemm_fp32_gflops ops.json) | awk '{ print $1, $2 / 2 }' |
        alike "glane_per_s" 1e-3 6e-3
    # Rates are of the best time, in the table too; a product of m x n x k computes 2 m n k.
    paste -d' ' <(values best_ms ops.json) <(values bytes ops.json) <(values flops ops.json) <(values gb_per_s ops.json) \
        <(values gflops ops.json) <(values floor_ms ops.json) <(values fraction ops.json) >ops.numbers
    awk '{ print $4, $2 / $1 / 1e6 }' ops.numbers | alike "gb_per_s" 1e-3 6e-4
    awk '{ print $5, $3 / $1 / 1e6 }' ops.numbers | alike "gflops" 1e-3 6e-4
    awk '$6 > 5e-4 { print $7, $6 / $1 }' ops.numbers | alike "fraction" 2e-2 6e-5
    paste -d' ' <(grep -v machine ops.json | values gexp_per_s /dev/stdin) <(values exps ops.json) <(values best_ms ops.json) | awk '{ print $1, $2 / $3 / 1e6 }' |
        alike "gexp_per_s" 1e-3 6e-4
    # 66 tokens in 48 channels: one exponential for a gate; a gate, a step and the decays of 4 states.
    for op in "conv1d_silu_forward 1" "scan_forward 6"; do
        echo "$(grep "\"op\":\"${op% *}\"" ops.json | values exps /dev/stdin) $((66 * 48 * ${op#* }))" | alike "exponentials of ${op% *}" 0 0
    done
    # A floor is that of the limit that it names, and not below that of copying, which it may equal up to rounding.
    paste -d' ' <(values floor_ms ops.json) <(values bytes ops.json) <(values flops ops.json) <(values bound ops.json) |
        awk -v copy="$(values copy_gb_per_s ops.json)" -v gemm="$(values gemm_${precision}_gflops ops.json)" '
            { least = $2 / copy / 1e6; print $4 == "copy" || $1 < least ? $1 : least, least }
            $4 == "gemm" { print $1, $3 / gemm / 1e6 }' | alike floor_ms 2e-3 6e-7
    values bound ops.json | sort -u | grep -vxE 'copy|exp|gemm|issue' && fail "another bound"
    paste -d' ' <(values flops ops.json) <(values bytes ops.json) <(values shape ops.json) <(values op ops.json) | tr x ' ' |
        awk '$NF == "gemm" { add = $(NF - 1) == "+="; m = $(NF - 3 - add); n = $(NF - 2 - add); k = $(NF - 1 - add)
            print $1, 2 * m * n * k, $2, 4 * (m * k + n * k + (1 + add) * m * n) }' >gemm.numbers
    cut -d' ' -f1,2 gemm.numbers | alike "FLOPs of products" 0 0
    [ $precision = bf16 ] || cut -d' ' -f3,4 gemm.numbers | alike "bytes of products" 0 0
    each=28 # weight, gradient and two moments are read, and three of them are written
    [ $precision = fp32 ] || each=30
    awk -v each=$each '$1 == "adamw" { n = $2; getline; print $(NF - 6), each * n / 1e6 }' ops.txt | alike "megabytes in the table" 0 0.006
    awk '$1 == "adamw" { getline; print $(NF - 5), $(NF - 6) / $(NF - 7) }' ops.txt | alike "GB/s in the table" 0.05 0.01
    check_width ops.txt
    awk 'NF == 10 && $9 ~ /copy|exp|issue|gemm/ { sum += $1 * $2 }
        /^ops of a step/ { print $5, sum }' ops.txt | alike "milliseconds of a step" 0.01 0.06
    awk 'NF == 10 && $9 ~ /copy|exp|issue|gemm/ { best += $1 * $3; floor += $1 * $8 }
        /^ops of a step/ { print $7, best; print $14, floor; print 10 * substr($16, 2), 10 * floor / best }' ops.txt | alike "best times and floors of a step" 0.01 0.3
done

"$dtrain" bench $size --layers "gru mlp lstm attention" --json >kinds.json
check_json kinds.json
for op in rnn_forward rnn_backward silu_gate_forward silu_gate_backward attention_forward attention_backward; do
    grep -q "\"op\":\"$op\"" kinds.json || fail "--layers: no line of JSON for $op"
done
"$dtrain" bench --step $size --layers "gru mlp attention" | grep -q "tokens/s" || fail "--step --layers"

policy="--heads buttons:bernoulli*3 --frame-size 9"
"$dtrain" bench --step $size $policy >policy.txt # by itself: its exit code counts
grep -q "tokens/s" policy.txt || fail "--step --heads"
"$dtrain" bench --play --layers "mamba gru" --d-model 24 $policy --json --seconds 0.01 >play.json
check_json play.json
for field in step_us model_mb state_bytes; do
    grep -q "\"$field\":[0-9.]*[1-9]" play.json || fail "--play --json: no $field above 0"
done
# At least three repeats of 50 steps take no longer than the process.
begun=${EPOCHREALTIME/./}
"$dtrain" bench --play --layers mamba --d-model 512 --json --seconds 0.01 >play.json
awk -v us="$(values best_step_us play.json)" -v wall=$((${EPOCHREALTIME/./} - begun)) 'BEGIN { exit !(us > 0 && 150 * us <= wall) }' ||
    fail "150 playing steps of $(values best_step_us play.json) us took $((${EPOCHREALTIME/./} - begun)) us"
megabytes() { "$dtrain" bench --play --layers mamba --d-model 64 --json --seconds 0.01 "$@" | sed -n 's/.*"model_mb":\([0-9.]*\).*/\1/p'; }
# In int8 the embeddings stay in fp32, and each of the other parameters has a byte at least.
awk -v fp32="$(megabytes --precision fp32)" -v bf16="$(megabytes --precision bf16)" -v int8="$(megabytes --int8)" \
    'BEGIN { exit !(fp32 > 1.6 * bf16 && bf16 > 0 && fp32 > 1.4 * int8 && 1e6 * int8 > 4 * 256 * 64 + 49152 - 256 * 64) }' || fail "--play: megabytes of fp32, bf16, int8 weights"
"$dtrain" bench --play --d-model 24 --vocab 30 --seconds 0.01 | grep -q "per playing step" || fail "--play of a language model"
"$dtrain" bench --step $size --json --recompute scan >step.json
check_json step.json
for field in step_ms tokens_per_s gflops peak_memory_mb last_step loss; do
    grep -q "\"$field\":[0-9.]*[1-9]" step.json || fail "--step --json: no $field above 0"
done
for field in idle_ms host_wait_ms data_wait_ms graphs; do
    grep -q "\"$field\":" step.json || fail "--step --json: no $field"
done
# The line for people, about 2 sequences of 33 tokens.
COLUMNS=80 "$dtrain" bench --step $size --d-model 256 --precision fp32 >step.txt
check_width step.txt
paste -sd' ' step.txt | tr -s ' ' | sed -nE 's|^fp32, 1 threads: [0-9]+ steps of 2 x 33 tokens, (.*) ms \(best (.*)\), (.*) tokens/s, (.*) GFLOP/s, peak .*|\1 \2 \3 \4|p' >step.numbers
# Times are rounded to a tenth of a ms, rates to a whole number.
awk '{ print $3, 66000 / $1 }' step.numbers | alike "tokens/s in text" 0 "$(awk '{ print 0.5 + 66000 * 0.06 / ($1 * $1) }' step.numbers)"
awk '{ print $4, $3 * (2 * (6 * (256 * 1024 + 512 * 24 + 16 * 512 + 512 * 256) + 27 * 512 * 4) + 6 * 100 * 256) / 1e9; print $2 <= $1, 1 }' step.numbers |
    alike "GFLOP/s in text" 1e-3 0.06
# 2 sequences of 33 tokens; the FLOPs of two layers of mamba with 48 channels and 4 states, and of the head.
awk -v ms="$(values step_ms step.json)" -v rate="$(values tokens_per_s step.json)" 'BEGIN { print rate * ms / 1000, 66 }' |
    alike "tokens_per_s x step_ms" 1e-3 0
awk -v rate="$(values tokens_per_s step.json)" -v gflops="$(values gflops step.json)" 'BEGIN {
    print gflops, rate * (2 * (6 * (24 * 96 + 48 * 10 + 2 * 48 + 48 * 24) + 27 * 48 * 4) + 6 * 100 * 24) / 1e9 }' | alike gflops 1e-3 6e-3
[ "$(values mfu step.json)" = 0.0000 ] || fail "a CPU has no data sheet: $(cat step.json)"
awk -v best="$(values best_step_ms step.json)" -v ms="$(values step_ms step.json)" 'BEGIN { exit !(best > 0 && best <= ms) }' ||
    fail "the best step is slower than the median"
# Frames take longer to draw than to train on: the device is idle while it waits for them, and these waits fit into the
# time of the process.
begun=${EPOCHREALTIME/./}
"$dtrain" bench --step --d-model 8 --layers mlp --heads a:bernoulli --frame-size 4096 --seq-len 32 --batch 2 --threads 1 --seconds 0.3 --json >waits.json
awk -v best="$(values best_step_ms waits.json)" -v ms="$(values step_ms waits.json)" -v steps="$(values steps waits.json)" -v wait="$(values data_wait_ms waits.json)" -v idle="$(values idle_ms waits.json)" \
    -v host="$(values host_wait_ms waits.json)" -v wall=$((${EPOCHREALTIME/./} - begun)) 'BEGIN {
    wall /= 1000; exit !(best < ms && wait > idle / 2 && wait <= 1.01 * idle && steps * idle <= wall && steps * host <= wall) }' ||
    fail "waits in a process of $((${EPOCHREALTIME/./} - begun)) us: $(cat waits.json)"
# The peak of memory equals what the kernel reports until the process ends, except with sanitizers, which use more.
kilobytes=0
"$dtrain" bench --step $size --seconds 0.4 --json >peak.json &
while kill -0 $! 2>/dev/null; do
    peak=$(sed -nE 's/^VmHWM:[[:space:]]*([0-9]*) kB/\1/p' /proc/$!/status 2>/dev/null) || break
    [ -z "$peak" ] || kilobytes=$peak
    sleep 0.02
done
[[ $(ldd "$dtrain") == *libasan* ]] ||
    echo "$(values peak_memory_mb peak.json) $(awk -v kb="$kilobytes" 'BEGIN { print kb / 1024 }')" | alike "peak_memory_mb" 0.01 0.06
# A player has weights in fp32 and the states of a stream: 128 channels of 16 states, and 3 inputs of the convolution.
"$dtrain" bench --play --layers mamba --d-model 64 --json --seconds 0.01 --precision fp32 >play.json
awk -v mb="$(values model_mb play.json)" -v n="$(values parameters play.json)" 'BEGIN { print mb, 4 * n / 1e6 }' | alike model_mb 0.02 0
[ "$(values parameters play.json)" = 49152 ] || fail "parameters of a layer of mamba and 256 embeddings of width 64: $(cat play.json)"
"$dtrain" bench --play --layers mamba --d-model 64 --seconds 0.01 --precision fp32 | paste -sd' ' | tr -s ' ' >play.txt
grep -q "^mamba\*1, fp32 weights: .* us per playing step (best .*), $(values model_mb play.json | awk '{ printf "%.2f", $1 }') MB of weights, state of a stream $(values state_bytes play.json) bytes$" play.txt ||
    fail "$(cat play.txt)"
awk -v state="$(values state_bytes play.json)" 'BEGIN { exit !(state >= 4 * 128 * 19 && state < 4 * 128 * 19 + 256) }' ||
    fail "state_bytes: $(cat play.json)"

# The step that is timed is the training step: its last loss equals, to the last digit, that of a run on the same
# synthetic tokens.
rm -rf run-*
cat >config.ini <<'INI'
[model]
d_model = 24
n_layer = 2
vocab_size = 100
d_state = 4
[data]
train = synthetic:random
seq_len = 33
batch = 2
[optim]
lr = 1e-3
schedule = constant
INI
for precision in fp32 bf16; do
    for micro in 1 2; do
        "$dtrain" bench --step $size --device cpu --json --precision $precision --micro-batch $micro >step.json
        last=$(sed -nE 's/.*"last_step":([0-9]+),"loss":([^,}]*)\}/\1 \2/p' step.json)
        "$dtrain" config.ini run.dir=run-$precision-$micro run.device=cpu run.threads=1 run.precision=$precision \
            data.micro_batch=$micro run.steps="${last% *}" >train.log 2>&1 || fail "$(cat train.log)"
        grep -q "\"step\":${last% *},.*\"loss\":${last#* }," run-$precision-$micro/metrics.jsonl ||
            fail "$precision: the loss of step ${last% *} is ${last#* }, not that of training"
    done
done
# Options replace the sizes of a model, whether they come before or after it.
"$dtrain" bench --step --device cpu --seq-len 33 --batch 2 --model 130m --n-layer 1 --vocab 100 --threads 1 \
    --seconds 0.001 --json >model.json
grep -q '"d_model":768,"n_layer":1,"vocab":100,.*"seq_len":33,' model.json || fail "--model 130m: $(cat model.json)"

mkdir -p text shards temporary
head -c 100000 "$dtrain" | base64 >text/some.txt
"$dtrain" pack -o shards --force text >/dev/null 2>&1
"$dtrain" bench --reader "$(ls shards/train-*.h5 | head -n 1)" --seconds 0.001 --json >reader.json
check_json reader.json
grep -q '"checked_ratio":' reader.json || fail "checksums were not measured"
paste -d' ' <(values ratio reader.json) <(values reader_gb_per_s reader.json) <(values read_gb_per_s reader.json) | awk '{ print $1, $2 / $3 }' |
    alike "ratio" 0.02 0.002
paste -d' ' <(values checked_ratio reader.json) <(values checked_gb_per_s reader.json) <(values read_gb_per_s reader.json) |
    awk '{ print $1, $2 / $3 }' | alike "checked_ratio" 0.02 0.002
"$dtrain" bench --reader "$(ls shards/train-*.h5 | head -n 1)" --seconds 0.001 >reader.txt
awk -v tokens="$(values tokens reader.json)" 'NR == 1 && $0 != tokens " tokens of uint8, 1024 KiB per read" { print "0 1" } NR == 2 { read = $2 }
    NR > 1 { print $(NF - 2), $(NF - 4) / read }' reader.txt | alike "the reader's rates in text" 0.01 0.006
[ "$("$dtrain" verify "$(ls shards/train-*.h5 | head -n 1)" | sed 's/.*: \([0-9]*\) tokens.*/\1/')" = "$(values tokens reader.json)" ] || fail "tokens: $(cat reader.json)"
# read() reads the whole file, and only a few tokens of it are asked for.
mkdir -p few
echo few >few/words.txt
"$dtrain" pack -o few-shards --force few >/dev/null 2>&1
"$dtrain" bench --reader few-shards/train-*.h5 --seconds 0.001 --json >few.json
values ratio few.json | awk '{ exit !($1 < 0.05) }' || fail "the rates of a file of few tokens: $(cat few.json)"
# A file that is no shard is refused before the time is over that reading it may take.
code=0
timeout 300 "$dtrain" bench --reader few/words.txt --seconds 3600 >/dev/null 2>bad.log || code=$?
[ $code -eq 2 ] && grep -q 'few/words.txt is not an HDF5 file' bad.log || fail "a file that is no shard: exit code $code: $(cat bad.log)"

# Every number is checked above or, after "in", in the test with that name. A new field needs a check.
sed -E 's/\{"bench":"([a-z]+)",/\1 /; s/"([a-z0-9_]+)":("[^"]*"|[^,}]*)[,}]/\1 /g' ./*.json | awk '{ for (i = 2; i <= NF; i++) print $1, $i }' | sort -u >found.txt
while read -r what fields; do
    for field in ${fields/ in [a-z]*:/ }; do echo "$what $field"; done
done <<'EOF' | sort -u >known.txt
machine device name precision threads copy_gb_per_s gemm_fp32_gflops gemm_bf16_gflops gexp_per_s gexp2_per_s glane_per_s
op op shape calls repeats ms best_ms bytes gb_per_s flops gflops exps gexp_per_s floor_ms bound fraction
play layers d_model weights parameters model_mb state_bytes step_us best_step_us
step device name d_model n_layer vocab d_state seq_len batch micro_batch recompute precision threads
step steps step_ms best_step_ms tokens_per_s gflops peak_memory_mb idle_ms host_wait_ms data_wait_ms last_step loss
step mfu
step in simt_gpu_bench: graphs
reader type tokens read_gb_per_s reader_gb_per_s ratio checked_gb_per_s checked_ratio
EOF
[ -z "$(comm -23 found.txt known.txt)" ] || fail "fields without a check: $(comm -23 found.txt known.txt)"
