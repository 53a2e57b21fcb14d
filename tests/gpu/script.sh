#!/usr/bin/env bash
# Tests tests/gpu.sh itself with made-up programs: a test that hangs or fails does not keep others from running, a budget
# is kept, and the folder of --out has the results so far.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
gpu=$(dirname "$0")/../gpu.sh
mkdir -p fake/tests/{parity,episodes,gpu} fake/data
cat >fake/dtrain <<'EOF'
#!/bin/sh
echo "device      cuda 0: a stand-in (sm_90)"
EOF
cat >fake/tests/parity/test_parity <<'EOF'
#!/bin/sh
echo $$ >pid
exec sleep 1000
EOF
cat >lost <<'EOF' # one family hangs; in another one the device is lost in case 2
#!/bin/sh
[ "$1" != --families ] || { echo cast; echo scan; exit; }
case "$*" in
*"cuda cast") exec sleep 1000 ;;
*"--from 1 cuda scan") echo "the device is lost in case 2"; exit 3 ;;
esac
echo "$*"
EOF
chmod +x lost
STEP_SECONDS=1 bash "$(dirname "$0")/parity.sh" ./lost >lost.log 2>&1 && code=0 || code=$?
check "a lost device is a failure: exit code $code" test "$code" -eq 1
check "… after which the family goes on" grep -qx -e '--from 3 cuda scan' lost.log
check "… and is shown at once" grep -q '^+ scan: FAILED, code 3' lost.log
check "a family that hangs keeps no other from running" grep -q '^+ cast: FAILED, code 124' lost.log
cp fake/dtrain fake/data/game
cp fake/dtrain fake/tests/episodes/make_episodes
cp fake/dtrain fake/tests/gpu/nccl_gpu
chmod +x fake/dtrain fake/data/game fake/tests/*/*

SECONDS=0 code=0
bash "$gpu" --build fake --out out --limit 5 parity train device >one.log 2>&1 || code=$?
check "a hang and a failure are failures: exit code $code" test "$code" -eq 1
check "the hang ends in time: $SECONDS s" test "$SECONDS" -lt 60
check "… and is called one" grep -qE '^parity: FAILED \(timed out\), ' out/summary.txt
# shellcheck disable=SC2317
ended() { ! kill -0 "$(cat "fake/gpu-logs/$1.d/pid")" 2>/dev/null; }
check "… and has ended" wait_until ended parity
check "what fails is said" grep -q '^train: FAILED' out/summary.txt
check "what comes after both runs" grep -q '^device: passed, .*stand-in' out/summary.txt
check "what to run again is said" grep -qx 'failed or not run: parity train' out/summary.txt
check "logs are kept" bash -c 'tar -tzf out/logs.tar.gz | grep -qx train.log'
bash "$gpu" --build fake --out later --budget 30 parity train ranks nccl kinds device >two.log 2>&1
check "a test gets a fifth of the budget" grep -qE '^parity: for up to 6 s' two.log
bash "$gpu" --build fake --out last --budget 16 parity device >last.log 2>&1
check "… or its share of what is left, but for the time of a kill" grep -qE '^parity: for up to 3 s' last.log
check "… and none begins without" grep -q '^device: NOT RUN' last/summary.txt
bash "$gpu" --build fake --arch 90 device >three.log 2>&1
check "--arch without a build is refused" grep -q -e '--arch is for a build of its own' three.log
bash "$gpu" --build fake device nosuch >three.log 2>&1
check "… and so is an unknown name" grep -q 'unknown: nosuch' three.log
bash "$gpu" --build fake --budget 1h device >three.log 2>&1
check "… and a budget that is no number: exit code $?" grep -q 'whole seconds, not 1h' three.log

# compute-sanitizer is checked by what it prints; parity.sh uses the same function.
mkdir tools
cat >tools/compute-sanitizer <<'EOF'
#!/bin/sh
case "$*" in
*"--tool racecheck "*) echo "Device not supported"; exit 1 ;;
*"cuda scan") echo "========= Invalid __global__ write"; echo "========= ERROR SUMMARY: 1 error"; exit 9 ;;
*) echo "========= ERROR SUMMARY: 0 errors" ;;
esac
EOF
chmod +x tools/compute-sanitizer
cp lost fake/tests/parity/test_parity
PATH=$PWD/tools:$PATH bash "$gpu" --build fake --out sane memcheck racecheck >sane.log 2>&1
check "an error is found: exit code $?" grep -q '^memcheck: FAILED.*1 of the families failed' sane/summary.txt
check "… and shown" grep -q '^  scan: code 9; ========= ERROR SUMMARY: 1 error' sane/summary.txt
check "… with its place" grep -q 'Invalid __global__ write' sane.log
check "the other family has none" grep -q '^  cast: code 0; ========= ERROR SUMMARY: 0 errors' sane/summary.txt
check "a tool that does not work is no failure" grep -q '^racecheck: skipped, .*does not work on this machine' sane/summary.txt

# The measurements of an interrupted call are kept.
cat >fake/dtrain <<'EOF'
#!/bin/sh
case "$*" in
*"--batch 8"*) echo "dtrain: error: training needs 9.1 GiB of device memory, and a stand-in has 8.0 GiB free after what is reserved" >&2; exit 3 ;;
*"--batch 16"*) echo $$ >pid; exec sleep 1000 ;;
*--step*) echo '{"bench":"step","d_model":768,"n_layer":24,"batch":4,"seq_len":2048,"precision":"bf16","steps":30,"step_ms":36.5,"best_step_ms":36,"tokens_per_s":224000.5,"gflops":1,"mfu":0.2,"peak_memory_mb":8000.5,"idle_ms":0}' ;;
*) echo "device      cuda 0: a stand-in (sm_90)" ;;
esac
EOF
bash "$gpu" --build fake --out cut bench >cut.log 2>&1 &
call=$!
check "figures are shown as they come" wait_until grep -q 'batch 4: 36.5 ms a step, 224000.5 tokens/s, MFU 0.2, 8000.5 MiB' cut.log
check "… and what does not fit" wait_until grep -q 'skipped: needs 9.1 GiB of device memory' cut.log
check "… before the test has ended" bash -c '! grep -q "^bench: FAILED" cut.log'
check "… and are in the folder" grep -q '"step_ms":36.5' cut/*.jsonl
check "… below the machine" grep -q '^{"gpu":"a stand-in","date":"20' cut/*.jsonl
check_python "… as the tables want them" "$repository/launch/results.py" cut/*.jsonl >cut.md
check "the test that is cut off is at work" wait_until test -s fake/gpu-logs/bench.d/pid
kill $call
check "… and ends with the call" wait_until ended bench

# Nsight Compute is checked by what it prints.
cat >tools/ncu <<'EOF'
#!/bin/sh
case "$*" in
*--import*raw*) cat "$PAGES/raw" ;;
*--import*) cat "$PAGES/details" ;;
*) [ "$OMP_WAIT_POLICY" = passive ] || exit 1 # dtrain would start itself again, which Nsight Compute does not follow
    [ ! -e "$PAGES/said" ] || { cat "$PAGES/said"; exit 1; }; : >scan.ncu-rep ;;
esac
EOF
chmod +x tools/ncu
export PAGES=$PWD
profile() {
    PATH=$PWD/tools:$PATH bash "$gpu" --build fake --out profile ncu >ncu.log 2>&1
}
page() { # prints a page with two kernels
    for kernel in forward backward; do
        echo "  void scan_${kernel}_registers<16, unsigned short>(dt_args) (24, 48, 1)x(128, 1, 1), Context 1, Stream 7, Device 0, CC 9.0"
        printf '%s\n' "$@"
    done
}
page '    Section: GPU Speed Of Light Throughput' '    SM Frequency                    Ghz         1.98' '    Duration                         us       412.10' \
    '    Issue Slots Busy               %        61.00' '    Registers Per Thread  register/thread  168' '    Achieved Occupancy                %        16.66' >details
page '    l1tex__data_pipe_lsu_wavefronts_mem_shared.sum                                   155,088' \
    '    l1tex__data_pipe_lsu_wavefronts_mem_shared.sum.pct_of_peak_sustained_elapsed  %  71.30' >raw
profile
check "kernels are profiled: exit code $?" grep -q '^ncu: passed' profile/summary.txt
check "… their figures are shown" grep -q '^  scan_backward_registers: .*Duration:412.10 us' profile/summary.txt
check "… and measured" grep -qF '"kernel":"scan_forward_registers","metrics":{"SM Frequency":"1.98 Ghz","Duration":"412.10 us","Issue Slots Busy":"61.00 %","Registers Per Thread":"168 register/thread","Achieved Occupancy":"16.66 %","l1tex__data_pipe_lsu_wavefronts_mem_shared.sum":"155,088","l1tex__data_pipe_lsu_wavefronts_mem_shared.sum.pct_of_peak_sustained_elapsed":"71.30 %"}' profile/*.jsonl
check "… all of the text is kept" cmp profile/ncu-scan.txt <(cat details raw)
check_python "… and there is a table" "$repository/launch/results.py" profile/*.jsonl >profile.md
check "… of both" test "$(grep -c '^| a stand-in | scan_' profile.md)" -eq "$(command -v python3 >/dev/null && echo 2 || echo 0)"
echo '==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters' >said
profile
check "without permission it is skipped: exit code $?" grep -q '^ncu: skipped, .*ERR_NVGPUCTRPERM' profile/summary.txt
echo 'Segmentation fault' >said
profile
check "… after another failure it is not: $(cat ncu.log)" grep -q '^ncu: FAILED' profile/summary.txt
rm tools/ncu
command -v ncu || [ -x /usr/local/cuda/bin/ncu ] || { profile; check "nor where it is missing" grep -q '^ncu: skipped, .*ncu was not found' profile/summary.txt; }
finish
