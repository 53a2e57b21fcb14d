#!/usr/bin/env bash
# tests/gpu.sh itself, over stand-ins for the programs: a test that hangs or fails does not keep the others from
# running, a budget is kept, and what is known so far is in the folder of --out.
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
[ "$1" != --families ] || exec echo scan
echo $$ >pid
exec sleep 1000
EOF
cat >lost <<'EOF' # a device that is lost in case 2 of one family
#!/bin/sh
[ "$1" != --families ] || { echo cast; echo scan; exit; }
case "$*" in
*"--from 1 cuda scan") echo "the device is lost in case 2"; exit 3 ;;
esac
echo "$*"
EOF
chmod +x lost
bash "$(dirname "$0")/parity.sh" ./lost >lost.log 2>&1 && code=0 || code=$?
check "a lost device is a failure: exit code $code" test "$code" -eq 1
check "… after which the family goes on" grep -qx -e '--from 3 cuda scan' lost.log
check "… and the others run" test "$(grep -c 'cuda cast' lost.log)" -eq 2
check "… with and without the model's shapes" grep -q '^FAILED: scan --model, code 3' lost.log
cp fake/dtrain fake/data/game
cp fake/dtrain fake/tests/episodes/make_episodes
cp fake/dtrain fake/tests/gpu/nccl_gpu
chmod +x fake/dtrain fake/data/game fake/tests/*/*

SECONDS=0 code=0
bash "$gpu" --build fake --out out --limit 5 parity train device >one.log 2>&1 || code=$?
check "a hang and a failure are failures: exit code $code" test "$code" -eq 1
check "the hang ends in time: $SECONDS s" test "$SECONDS" -lt 60
check "… and is called one" grep -qE '^parity: FAILED \(timed out\), ' out/summary.txt
check "… and has ended" bash -c '! kill -0 "$(cat fake/gpu-logs/parity.d/pid)" 2>/dev/null'
check "what fails is said" grep -q '^train: FAILED' out/summary.txt
check "what comes after both runs" grep -q '^device: passed, .*stand-in' out/summary.txt
check "logs are kept" bash -c 'tar -tzf out/logs.tar.gz | grep -qx train.log'
bash "$gpu" --build fake --out later --budget 12 parity device >two.log 2>&1 || code=$?
check "a test leaves half of the budget to the others" grep -qE '^parity: FAILED \(timed out\), [6-9] s' later/summary.txt
check "… and none begins after it" grep -q '^device: NOT RUN' later/summary.txt
bash "$gpu" --build fake --arch 90 device >three.log 2>&1
check "--arch without a build is refused" grep -q -e '--arch is for a build of its own' three.log
finish
