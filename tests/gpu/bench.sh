#!/usr/bin/env bash
# Measures on the CUDA device: every op of the 130M model's step, whole steps of the 130M and 370M
# models at 2048 tokens. Writes DIR/<gpu>-<date>.json with the results, the machine and the commit.
# Skipped without a device. Arguments: dtrain, DIR, and whole or small (for simulated devices).
# shellcheck source=tests/gpu/lib.sh
target=$(realpath "$2")
. "$(dirname "$0")/lib.sh"
case $3 in
whole)
    models=("--model 130m" "--model 370m") more=""
    batches=(16 8 4 2 1)
    ;;
small)
    models=("--d-model 16 --n-layer 1 --seq-len 16 --vocab 64 --d-state 4") more="--warm --seconds 0.001"
    batches=(60000 2)
    ;;
*)
    echo "usage: bench.sh dtrain DIR whole|small" >&2
    exit 2
    ;;
esac

text() { # a line as a JSON string
    printf '"%s"' "$(tr -d '\\"\n\r\t' <<<"$1")"
}

lines() { # JSON lines or strings, as the elements of a list
    sed '$!s/$/,/'
}

commit() {
    cat "$repository/COMMIT" 2>/dev/null || git -C "$repository" describe --always --dirty --abbrev=12 2>/dev/null ||
        echo unknown
}

driver() {
    nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1 || true
}

about() {
    while read -r line; do
        text "$line"
        echo
    done <info.txt
}

# shellcheck disable=SC2086,SC2317
fitting() { # options …: with the first batch that fits into the device's memory
    local batch
    for batch in "${batches[@]}"; do
        limited "$dtrain" bench --device cuda --json "$@" --batch $batch 2>error.txt && return
        cat error.txt >&2
        grep -q memory error.txt || return 1
    done
    return 1
}

# shellcheck disable=SC2086,SC2317
measure() { # one that fails does not keep the others from being measured
    local model code=0
    fitting ${models[0]} $more || code=1
    for model in "${models[@]}"; do
        fitting --step $model ${more#--warm} || code=1
    done
    return $code
}

value() { # key: in lines of JSON
    sed -nE "s/.*\"$1\":\"?([^,\"}]*).*/\1/p"
}

# shellcheck disable=SC2317
trains() { # cuda_graph: does a run end with the loss of the benchmark's last step?
    limited "$dtrain" bench --step --device cuda --cuda-graph "$1" --d-model 16 --n-layer 1 --seq-len 4 --vocab 16 --d-state 4 \
        --batch 2 --micro-batch 1 --precision fp32 --seconds 0.001 --json >step.json || return 1
    train synthetic-"$1" run.cuda_graph="$1" run.steps="$(value last_step <step.json)" || return 1
    train_lines "$(curve synthetic-"$1")" | awk -v step="$(value last_step <step.json)" -v loss="$(value loss <step.json)" '
        $1 == step { d = $2 - loss; found = (d < 0 ? -d : d) <= 1e-5 * loss } END { exit !found }'
}
cat >small.ini <<'EOF'
[run]
precision = fp32
device = cuda
[model]
d_model = 16
n_layer = 1
vocab_size = 16
d_state = 4
[data]
train = synthetic:random
seq_len = 4
batch = 2
micro_batch = 1
[optim]
lr = 1e-3
schedule = constant
EOF
check "without graphs bench times the training step" trains false
check "… and launches no graph" test "$(value graphs <step.json)" -eq 0
check "with graphs bench times the training step" trains true
check "… and launches a graph per micro-batch" test "$(value graphs <step.json)" -eq 2

check "the measurements" measure >rows.jsonl 2>measure.log
check "a row for every op" test "$(grep -c '"bench":"op"' rows.jsonl)" -ge 17
check "a row for every model" test "$(grep -c '"bench":"step"' rows.jsonl)" -eq ${#models[@]}
[ $failures -eq 0 ] || cat measure.log >&2
[ -s rows.jsonl ] || finish

gpu=$(sed -nE 's/^device *cuda 0: (.*) \(.*/\1/p' info.txt)
name=$(tr '[:upper:] ' '[:lower:]-' <<<"$gpu" | tr -cd 'a-z0-9.-')
file=$target/$name-$(date -u +%Y-%m-%d).json
{
    echo "{\"gpu\":$(text "$gpu"),\"date\":$(text "$(date -u +%Y-%m-%dT%H:%MZ)"),\"commit\":$(text "$(commit)"),"
    echo "\"driver\":$(text "$(driver)"),\"system\":$(text "$(uname -srm)"),"
    echo '"info":['
    about | lines
    echo '],"rows":['
    lines <rows.jsonl
    echo ']}'
} >"$file"
if command -v python3 >/dev/null; then
    check "the tables are made from it" "$repository/launch/results.py" "$file" >table.md
    check "… every op of a step is in them" test "$(grep -c '^| [a-z0-9_]* | [0-9]' table.md)" -ge 13
fi
echo "$file" >&2
finish
