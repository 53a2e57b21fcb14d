# `dtrain bench` at tiny shapes: every op that the model calls is in the table, lines of JSON parse,
# wrong options are refused. No timing is looked at.
set -eu
dtrain=$1
ops=$2 # kernels/ops.h, where the list is
size="--d-model 24 --n-layer 2 --seq-len 33 --batch 2 --vocab 100 --d-state 4 --threads 1 --seconds 0.001"

fail() {
    echo "$1"
    exit 1
}

# One object a line: fields in quotes with a string or a finite number, nothing else.
check_json() {
    local field='"[a-z0-9_]+":("[^"\\]*"|-?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?)'
    [ -s "$1" ] || fail "$1 is empty"
    if grep -vE "^\{$field(,$field)*\}$" "$1"; then
        fail "$1: that is no line of JSON"
    fi
}

# All but the ops of other kinds of model.
list=$(sed -nE 's/^ *[WX]\(([a-z0-9_]+)\).*/\1/p' "$ops" |
    grep -E '^(gemm|embed|rmsnorm|conv1d|scan|xent|sum_squares|update|adamw|checksum|cast|accumulate|commit|stamp|spin)')
[ "$(echo "$list" | wc -l)" -ge 15 ] || fail "$ops: the list of ops was not found"

for precision in fp32 bf16; do
    "$dtrain" bench $size --precision $precision --warm --json >ops.json
    check_json ops.json
    "$dtrain" bench $size --precision $precision --micro-batch 1 >ops.txt
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
done

"$dtrain" bench $size --layers "gru mlp lstm attention" --json >kinds.json
check_json kinds.json
for op in rnn_forward rnn_backward silu_gate_forward silu_gate_backward attention_forward attention_backward; do
    grep -q "\"op\":\"$op\"" kinds.json || fail "--layers: no line of JSON for $op"
done
"$dtrain" bench --step $size --layers "gru mlp attention" | grep -q "tokens/s" || fail "--step --layers"

policy="--heads buttons:bernoulli*3 --frame-size 9"
"$dtrain" bench --step $size $policy | grep -q "tokens/s" || fail "--step --heads"
"$dtrain" bench --play --layers "mamba gru" --d-model 24 $policy --json --seconds 0.01 >play.json
check_json play.json
for field in step_us model_mb state_bytes; do
    grep -q "\"$field\":[0-9.]*[1-9]" play.json || fail "--play --json: no $field above 0"
done
megabytes() { "$dtrain" bench --play --layers mamba --d-model 64 --json --seconds 0.01 "$@" | sed -n 's/.*"model_mb":\([0-9.]*\).*/\1/p'; }
awk -v fp32="$(megabytes --precision fp32)" -v bf16="$(megabytes --precision bf16)" -v int8="$(megabytes --int8)" \
    'BEGIN { exit !(fp32 > 1.6 * bf16 && bf16 > 0 && fp32 > 1.4 * int8 && int8 > 0) }' || fail "--play: megabytes of fp32, bf16, int8 weights"
"$dtrain" bench --play --d-model 24 --vocab 30 --seconds 0.01 | grep -q "per playing step" || fail "--play of a language model"
"$dtrain" bench --step $size --json --recompute scan >step.json
check_json step.json
for field in step_ms tokens_per_s gflops peak_memory_mb last_step loss; do
    grep -q "\"$field\":[0-9.]*[1-9]" step.json || fail "--step --json: no $field above 0"
done
for field in idle_ms host_wait_ms data_wait_ms graphs; do
    grep -q "\"$field\":" step.json || fail "--step --json: no $field"
done
"$dtrain" bench --step $size | grep -q "tokens/s"

# The step that is timed is the training step: its last loss is, to the last digit, that of a run on
# the same synthetic tokens.
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
# What is given stands over a model's sizes, on either side of it.
"$dtrain" bench --step --device cpu --seq-len 33 --batch 2 --model 130m --n-layer 1 --vocab 100 --threads 1 \
    --seconds 0.001 --json >model.json
grep -q '"d_model":768,"n_layer":1,"vocab":100,.*"seq_len":33,' model.json || fail "--model 130m: $(cat model.json)"

mkdir -p text shards temporary
head -c 100000 "$dtrain" | base64 >text/some.txt
"$dtrain" pack -o shards --force text >/dev/null 2>&1
"$dtrain" bench --reader "$(ls shards/train-*.h5 | head -n 1)" --seconds 0.001 --json >reader.json
check_json reader.json
grep -q '"checked_ratio":' reader.json || fail "checksums were not measured"

refuse() {
    local code=0
    "$dtrain" bench "$@" >out.txt 2>error.txt || code=$?
    [ $code -eq 2 ] || fail "dtrain bench $*: exit code $code, not 2"
    [ -s error.txt ] || fail "dtrain bench $*: no message"
}
refuse --bogus
refuse --d-model
refuse --d-model 0
refuse --d-model 12x
refuse --d-model nan
refuse --device tpu
refuse --model 7b
refuse --reader --device cpu
refuse --batch 1.5
refuse --precision half
refuse --json=1
refuse --step --reader
refuse --step --warm
refuse --step --device cpu --cuda-graph true
refuse --cuda-graph true
refuse --step --gemm best
refuse --reader --batch 4
refuse some.h5
refuse --reader nosuch.h5
refuse --reader error.txt
refuse --batch 6 --micro-batch 4
refuse --threads 4096
refuse --comm --first 1G --last 1
"$dtrain" bench --help | grep -q -- --micro-batch
