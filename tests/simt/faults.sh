#!/usr/bin/env bash
# Everything that can be wrong with devices and libraries before the first step: one message that says what is wrong and
# where, a hint, and exit code 2 or 3. `auto` uses the CPU where that is right. The devices are simulated.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
small_run
sed -i 's/^d_model = .*/d_model = 16/; s/^seq_len = .*/seq_len = 11/; s/^batch = .*/batch = 4/; s/^steps = .*/steps = 2/; s/^warmup_steps = .*/warmup_steps = 1/
    /^val = /d' small.ini
host=$(uname -n)
id='GPU-[0-9a-f-]{36}'
run=0 # runs so far

# code, description, pattern of the message, pattern of the hint, command …
refused() {
    local want=$1 what=$2 message=$3 hint=$4 status
    shift 4
    timeout 60 "$@" >out.log 2>err.log
    status=$?
    check "$what: exit code $status, not $want: $(tail -n 3 err.log)" test $status -eq "$want"
    check "$what: one message, not $(grep -ac '^dtrain: error' err.log)" test "$(grep -ac '^dtrain: error' err.log)" -eq 1
    check "$what: '$(grep -a '^dtrain: error' err.log)' is not '$message'" grep -aEq "^dtrain: error: .*$message" err.log
    [ -z "$hint" ] || check "$what: '$(grep -a '^  hint: ' err.log)' is not '$hint'" grep -aEq "^  hint: .*$hint" err.log
}
n_ranks() { # n: sets $command to train a new run on so many ranks
    run=$((run + 1))
    command=("${local_mpirun[@]}" -np "$1" "$dtrain" small.ini run.name="bad-$run" run.device=cuda)
}
fault() { # code, n, description, message, hint, arguments of dtrain …
    n_ranks "$2"
    refused "$1" "$3, $2 ranks" "$4" "$5" "${command[@]}" "${@:6}"
}
trains() { # description, n, arguments …: output in trains.log, the run is good-N
    run=$((run + 1))
    check "$1" ranks "$2" small.ini run.name=good-$run "${@:3}" >trains.log 2>&1
    check "$1: a checkpoint" test -n "$(ls runs/good-$run/checkpoints)"
}

# There is no device, no driver, or an old driver.
for n in 1 2; do
    SIMT_DEVICES=0 fault 2 $n "no device" 'no GPU: the NVIDIA driver sees none' 'run.device = cpu'
    SIMT_DRIVER=0 fault 2 $n "no driver" 'no GPU: no NVIDIA driver found' "NVIDIA's driver"
    SIMT_DRIVER=12040 fault 2 $n "an old driver" 'driver supports CUDA up to 12.4, this program was built with CUDA 13.0' \
        'newer driver'
done
check "on the CPU" ranks 1 small.ini run.name=cpu run.device=cpu >cpu.log 2>&1
for reason in SIMT_DEVICES=0 SIMT_DRIVER=0 SIMT_DRIVER=12040; do
    export "${reason?}"
    trains "auto with $reason" 1
    check "… says so once, with the reason" test "$(grep -c 'run.device = auto uses the CPU: no GPU' trains.log)" -eq 1
    check "… and trains there" same_bits runs/good-$run/checkpoints/step-00000002 runs/cpu/checkpoints/step-00000002
    unset "${reason%%=*}"
done
SIMT_DEVICES=0 trains "auto with two ranks and no device" 2
check "… says so once" test "$(grep -c 'uses the CPU' trains.log)" -eq 1
trains "auto with a device" 1
check "… takes it" eval '! grep -q "uses the CPU" trains.log'
SIMT_DEVICES=2 trains "auto with two" 2

check "the order of data needs no device" env SIMT_DEVICES=0 "$dtrain" order small.ini run.device=cuda --steps 1:1 \
    >order.log 2>&1

# Only some ranks have a device, or there are too few, or two ranks have the same one.
one() { # SIMT_DEVICES of a rank: what mpirun starts
    echo "-np 1 -x SIMT_DEVICES=$1 $dtrain small.ini run.name=mixed"
}
# shellcheck disable=SC2046
refused 2 "one rank without a device" "rank 0 on host $host sees a CUDA device, but rank 1 on host $host does not: no GPU" \
    'run.device = cpu' "${local_mpirun[@]}" $(one 1) : $(one 0)
# shellcheck disable=SC2046
refused 2 "the other rank, cuda asked for" "rank 1 on $host: no GPU" 'run.device = cpu' "${local_mpirun[@]}" \
    $(one 1) run.device=cuda : $(one 0) run.device=cuda
SIMT_DEVICES=2 fault 2 3 "too few devices" \
    "host $host: ranks 0 and 2 would share one GPU, $id \(3 ranks there, 2 devices visible\)" 'ppr:2:node.*--gres=gpu:3' \
    data.batch=6
SIMT_DEVICES=2 SIMT_UUID=same fault 2 2 "one device twice" \
    "host $host: ranks 0 and 1 would share one GPU, $id \(2 ranks there, 2 devices visible\)" 'CUDA_VISIBLE_DEVICES'
fault 2 2 "one device" 'ranks 0 and 1 would share one GPU' 'run.share_device = true'

# Sharing, graphs and communicators.
n_ranks 2
refused 2 "sharing with NCCL" 'comm.backend: NCCL does not support ranks that share a GPU' '' \
    "${command[@]}" run.share_device=true comm.backend=nccl
trains "sharing" 2 run.share_device=true
check "… says what it uses" grep -q 'comm.backend = auto uses mpi' trains.log
trains "sharing by MPI" 2 run.share_device=true comm.backend=mpi
check "… needs no word" eval '! grep -q "takes mpi" trains.log'
trains "NCCL asked for, of one rank" 1 comm.backend=nccl
SIMT_DEVICES=0 refused 2 "NCCL without a device" 'comm.backend: nccl, but the ranks run on the CPU' 'auto' \
    "$dtrain" small.ini run.name=bad comm.backend=nccl
SIMT_DEVICES=0 refused 2 "a graph without a device" 'run.cuda_graph: true, but the device is a CPU' 'auto' \
    "$dtrain" small.ini run.name=bad run.cuda_graph=true
trains "a graph" 1 run.cuda_graph=true

for version in "2804 2.8.4" "21005 2.10.5" "23007 2.30.7"; do # the number has one digit more since 2.9
    check "NCCL ${version#* }" grep -q "^NCCL  *${version#* }\$" <(SIMT_NCCL_VERSION=${version% *} "$dtrain" info)
done

# Puts libraries that cannot be loaded before all others.
broken() { # names
    rm -rf broken
    mkdir broken
    for name in "$@"; do
        echo "no library" >"broken/$name"
    done
}
path=$LD_LIBRARY_PATH
broken libnccl.so.2 libnccl.so
export LD_LIBRARY_PATH=$PWD/broken:$path SIMT_DEVICES=2
fault 2 2 "no NCCL" '2 ranks on GPUs sum their gradients with NCCL \(comm.backend = auto\): NCCL cannot be loaded: .*libnccl' \
    'libnccl2.*comm.backend = mpi'
fault 2 2 "no NCCL, asked for" 'comm.backend = nccl\): NCCL cannot be loaded' 'libnccl2' comm.backend=nccl
trains "no NCCL, by MPI" 2 comm.backend=mpi
trains "no NCCL, one rank" 1
"$dtrain" info >info.log 2>&1
check "info without NCCL goes on" grep -q 'NCCL *not found: .*libnccl' info.log
check "… to the end" grep -q '^HDF5 ' info.log
broken libcublasLt.so.13 libcublasLt.so.12 libcublasLt.so
for n in 1 2; do
    fault 2 $n "no cuBLASLt" 'cuBLASLt cannot be loaded: .*libcublasLt' '.'
done
refused 2 "no cuBLASLt for a sample" 'cuBLASLt cannot be loaded' '.' "$dtrain" sample --device cuda runs/cpu
"$dtrain" info >info.log 2>&1
check "info without cuBLASLt goes on" grep -q 'cuda 1 cannot be opened: .*libcublasLt' info.log
check "… to the end" grep -q '^HDF5 ' info.log
export LD_LIBRARY_PATH=$path
unset SIMT_DEVICES

# Memory: --check reports what a job needs, to 0.1 MiB.
takes() { # arguments: the MiB that the job needs on the device
    "$dtrain" --check small.ini run.name=absent run.device=cuda "$@" | sed -n 's/^  on the device *\([0-9.]*\) MiB/\1/p'
}
bytes() { # MiB, of which something is missing
    awk -v x="$1" 'BEGIN { printf "%d", (x - 0.2) * 1048576 }'
}
reserved() { # ranks: the MiB that are reserved, three times as many with NCCL
    SIMT_DEVICES=2 ranks "$1" --check small.ini run.name=absent run.device=cuda 2>&1 | sed -n 's/^  reserved *\([0-9.]*\) MiB/\1/p'
}
check "room for NCCL: $(reserved 1) and $(reserved 2) MiB" awk -v one="$(reserved 1)" -v two="$(reserved 2)" \
    'BEGIN { exit !(one > 0 && two > 2.9 * one && two < 3.1 * one) }'
long=(data.seq_len=96 run.steps=1 optim.warmup_steps=0)
big=("${long[@]}" data.batch=24)
whole=$(takes "${big[@]}")
export SIMT_MEMORY
SIMT_MEMORY=$(bytes "$whole")
fault 3 1 "too little memory" "training needs $whole MiB of device memory, and Simulated GPU has [0-9.]+ MiB free after what is reserved for code loaded later; most of it for " \
    'data.micro_batch = [0-9]+ with model.recompute = [a-z]+ needs [0-9.]+ MiB' "${big[@]}"
refused 3 "--check with too little" 'training needs' 'data.micro_batch' "$dtrain" --check small.ini run.name=absent \
    run.device=cuda "${big[@]}"
check "… after the plan, with its snapshot" grep -q "^  host snapshot " out.log
mapfile -t proposals < <(grep -o 'data.micro_batch = [0-9]* with model.recompute = [a-z]*' err.log)
check "there are proposals" test ${#proposals[@]} -gt 0
for proposal in "${proposals[@]}"; do
    read -r _ _ micro _ _ _ recompute <<<"$proposal"
    trains "as proposed: $proposal" 1 run.device=cuda "${big[@]}" data.micro_batch="$micro" model.recompute="$recompute"
done
SIMT_DEVICES=2 fault 3 2 "too little for NCCL too" 'free after what is reserved for NCCL' 'data.micro_batch' "${long[@]}" data.batch=48
step=(bench --step --device cuda --d-model 16 --n-layer 1 --seq-len 8 --batch 2 --vocab 16 --precision fp32 --seconds 0.001)
SIMT_MEMORY=100000
refused 3 "too little memory for bench" 'training needs [0-9.]* MiB of device memory' 'data.micro_batch' "$dtrain" "${step[@]}"
check "… whose options are named" grep -q 'where data.micro_batch is --micro-batch' err.log
SIMT_MEMORY=$(sed -n 's/.*training needs \([0-9.]*\) MiB.*/\1/p' err.log | awk '{ printf "%d", 1.004 * $1 * 1048576 }')
refused 3 "bench reserves as training does" 'free after what is reserved for code loaded later' '.' "$dtrain" "${step[@]}"
SIMT_MEMORY=100000
fault 3 1 "no settings fit" 'training needs' 'no data.micro_batch or model.recompute would fit' "${big[@]}"
SIMT_MEMORY=3000
refused 3 "too little for a sample" 'out of memory on GPU 0' '.' "$dtrain" sample --device cuda runs/cpu
unset SIMT_MEMORY
n_ranks 2
whole=$(takes "${long[@]}" data.batch=12)
SIMT_MEMORY=$(bytes "$(awk -v x="$whole" 'BEGIN { print 2 * x }')") refused 3 "too little for two that share" \
    'free for each rank that shares it' 'data.micro_batch' "${command[@]}" run.share_device=true "${big[@]}"

finish
