#!/usr/bin/env bash
# Measures the scan's kernels at the shapes of a layer of the 130M model with 16 sequences under Nsight Compute.
# ncu-scan.txt beside FILE has its whole report, FILE a row for each launch with clocks, issue slots, occupancy and the
# wavefronts of shared memory. Skipped without a device, without ncu, or if ncu may not read the counters.
# Arguments: dtrain, FILE.jsonl.
rows=$(realpath "$2")
# shellcheck source=tests/gpu/lib.sh
. "$(dirname "$0")/lib.sh"
skip() {
    echo "skipped: $*" >&2
    exit 77
}
ncu=$(command -v ncu || echo /usr/local/cuda/bin/ncu)
[ -x "$ncu" ] || skip "ncu was not found"

# The clocks are not fixed, since the time in training is of interest. A layer's step has at most six launches, each of
# which is replayed some forty times, so the measurement gets all of the time.
RUN_SECONDS=${STEP_SECONDS:-1000} limited "$ncu" --set full --clock-control none -k regex:scan_ -c 6 -f -o scan \
    "$dtrain" bench --step --device cuda --cuda-graph false --model 130m --n-layer 1 --vocab 256 --batch 16 --seconds 0.001 >ncu.log 2>&1
if [ ! -e scan.ncu-rep ]; then
    why=$(grep -m 1 -E 'ERR_NVGPUCTRPERM|Failed to initialize the profiler|not supported' ncu.log) && skip "$why"
    cat ncu.log
    exit 1
fi
"$ncu" --import scan.ncu-rep --page details >details.txt && "$ncu" --import scan.ncu-rep --page raw >raw.txt || exit 1
cat details.txt raw.txt >"$(dirname "$rows")/ncu-scan.txt"

# "scan_forward_registers Duration        412.10 us": both pages list the launches in one order, with one label or
# metric per line whose last fields are its unit and value.
awk '
    BEGIN {
        split("Duration;SM Frequency;Registers Per Thread;Achieved Occupancy;Issue Slots Busy;Mem Pipes Busy;" \
              "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum;l1tex__data_pipe_lsu_wavefronts_mem_shared.sum.pct_of_peak_sustained_elapsed;" \
              "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", wanted, ";")
    }
    FNR == 1 { launch = 0 }
    / Context [0-9]+, Stream [0-9]+/ && match($0, /scan_[a-z_]+/) { launch++; kernel[launch] = substr($0, RSTART, RLENGTH) }
    launch { for (i in wanted) {
        text = $0
        sub(/^ +/, "", text)
        if (index(text, wanted[i] " ") != 1 || (launch, i) in found) continue
        found[launch, i] = 1
        words = split(substr(text, length(wanted[i]) + 1), word, " ")
        metrics[launch] = metrics[launch] ",\"" wanted[i] "\":\"" word[words] (words > 1 ? " " word[words - 1] : "") "\""
    } }
    END { for (i = 1; i in kernel; i++) printf "{\"bench\":\"ncu\",\"kernel\":\"%s\",\"metrics\":{%s}}\n", kernel[i], substr(metrics[i], 2) }
' details.txt raw.txt >launches.jsonl
{ about_machine; cat launches.jsonl; } >>"$rows"
sed -nE 's/.*"kernel":"([^"]*)","metrics":\{(.*)\}\}/+ \1: \2/p' launches.jsonl | tr -d '"'
check "both scans were measured" grep -q scan_backward <(grep -A 9 scan_forward launches.jsonl)
check "… with what is asked for" grep -q 'Duration.*Issue Slots Busy.*wavefronts_mem_shared.sum' launches.jsonl
finish
