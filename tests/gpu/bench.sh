#!/usr/bin/env bash
# Measures on the CUDA device: whole steps of the 130M or 370M model with 2048 tokens in 4, 8, 16 and 32 sequences
# (fewer if none of these fits), or every op of the 130M model's step at the first batch that fits, after which the step
# of bench is compared with that of a run. Rows are appended to FILE and shown as soon as they are measured. Skipped
# without a device.
# Arguments: dtrain, FILE.jsonl, and 130m, 370m, ops or small (all of it, for simulated devices).
rows=$(realpath "$2")
# shellcheck source=tests/gpu/lib.sh
. "$(dirname "$0")/lib.sh"
step="" ops=""
case $3 in
130m | 370m) step="--model $3 --seconds 3" batches="4 8 16 32" fewer="2 1" ;;
ops) ops="--model 130m" batches="16 8 4 2 1" ;;
small)
    step="--d-model 16 --n-layer 1 --seq-len 16 --vocab 64 --d-state 4 --seconds 0.001"
    ops="$step --warm" batches="60000 2" fewer="1"
    ;;
*)
    echo "usage: bench.sh dtrain FILE.jsonl 130m|370m|ops|small" >&2
    exit 2
    ;;
esac

figures() { # rows as text for the reader
    sed -nE \
        -e 's/.*"bench":"step".*"batch":([0-9]+).*"precision":"([^"]*)".*"step_ms":([^,]*).*"tokens_per_s":([^,]*).*"mfu":([^,]*),"peak_memory_mb":([^,]*).*/\2, batch \1: \3 ms a step, \4 tokens\/s, MFU \5, \6 MiB/p' \
        -e 's/.*"copy_gb_per_s":([^,]*),"gemm_fp32_gflops":([^,]*),"gemm_bf16_gflops":([^,]*),.*"gexp2_per_s":([^,]*),.*/limits: copy \1 GB\/s, GEMM fp32 \2, bf16 \3 GFLOP\/s, exponentials \4 G\/s/p' \
        -e 's/.*"op":"([^"]*)","shape":"([^"]*)","calls":([0-9]+).*"ms":([^,]*),"best_ms".*"floor_ms":([^,]*),"bound":"([^"]*)".*/\1 \2: \3 times \4 ms, floor \5 (\6)/p'
}

# shellcheck disable=SC2086 # options, separated by spaces
measure() { # options of dtrain bench: returns 2 if they do not fit into the device's memory
    echo "+ dtrain bench $1"
    if limited "$dtrain" bench --device cuda --json $1 >row.jsonl 2>error.txt; then
        cat row.jsonl >>"$rows"
        figures <row.jsonl | sed 's/^/+   /'
    elif grep -q 'needs .* of device memory' error.txt; then
        echo "+   skipped: $(grep -o 'needs .* free' error.txt)"
        return 2
    else
        cat error.txt >&2
        return 1
    fi
}

about_machine >>"$rows"
if [ -n "$step" ]; then
    measured=0
    for batch in $batches $fewer; do
        [[ " $fewer " != *" $batch "* ]] || [ $measured -eq 0 ] || break
        measure "--step $step --batch $batch" && code=0 || code=$?
        check "steps of $batch sequences: exit code $code" test "$code" -ne 1
        measured=$((measured + (code == 0)))
    done
    check "a batch was measured" test $measured -gt 0
fi
[ -n "$ops" ] || finish
for batch in $batches; do
    measure "$ops --batch $batch" && code=0 || code=$?
    [ "$code" -eq 2 ] || break
done
check "every op is measured: exit code $code" test "$code" -eq 0
check "a row for every op" test "$(grep -c '"bench":"op"' row.jsonl)" -ge 17
if command -v python3 >/dev/null; then
    check "the tables are made from them" "$repository/launch/results.py" "$rows" >table.md
    check "… every op of a step is in them" test "$(grep -c '^| [a-z0-9_]* | [0-9]' table.md)" -ge 13
fi

# shellcheck disable=SC2317
trains() { # cuda_graph: whether a run ends with the loss of the benchmark's last step
    limited "$dtrain" bench --step --device cuda --cuda-graph "$1" --d-model 16 --n-layer 1 --seq-len 4 --vocab 16 --d-state 4 \
        --batch 2 --micro-batch 1 --precision fp32 --seconds 0.001 --json >step.json || return 1
    train synthetic-"$1" run.cuda_graph="$1" run.steps="$(value last_step <step.json)" || return 1
    train_lines "$(curve synthetic-"$1")" | awk -v step="$(value last_step <step.json)" -v loss="$(value loss <step.json)" '
        $1 == step { d = $2 - loss; found = (d < 0 ? -d : d) <= 1e-5 * loss } END { exit !found }'
}
cat >small.ini <<'END'
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
END
check "without graphs bench times the training step" trains false
check "… and launches no graph" test "$(value graphs <step.json)" -eq 0
check "with graphs bench times the training step" trains true
check "… and launches a graph per micro-batch" test "$(value graphs <step.json)" -eq 2
finish
