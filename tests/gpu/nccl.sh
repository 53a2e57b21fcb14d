#!/usr/bin/env bash
# Every collective by NCCL on one rank, which needs one device, and on one rank for each device. Then NCCL sums the
# gradients of two ranks, each on its own device or both on one, which NCCL 2.30 and newer allow. They have the losses of
# one rank, the same bits with and without graphs, sharded states and reproducible sums, and share windows. Skipped
# without a device or NCCL.
# Arguments: dtrain, the program of simt/cuda/test_nccl.c.
# shellcheck source=tests/gpu/lib.sh
. "$(dirname "$0")/lib.sh"
collectives=$(realpath "$2")
small_run
two=(comm.backend=nccl)
export NCCL_DEBUG=WARN
devices=$(grep -cE '^device +cuda [0-9]+:' info.txt)
read -r major minor < <(sed -nE 's/^NCCL +([0-9]+)\.([0-9]+).*/\1 \2/p' info.txt)
[ -n "$major" ] || { echo "skipped: $(grep '^NCCL' info.txt)" >&2; exit 77; }
for n in $(printf '%s\n' 1 $((devices < 4 ? devices : 4)) | uniq); do
    check "every collective on $n GPUs" limited "${local_mpirun[@]}" -np "$n" "$collectives" \
        >collectives-"$n".log 2>&1
    [ $failures -eq 0 ] || cat collectives-"$n".log >&2
done
if [ "$devices" -lt 2 ]; then
    if [ "$major" -eq 2 ] && [ "$minor" -lt 30 ]; then
        echo "skipped two ranks: one GPU, and two ranks on it need NCCL 2.30: $(grep '^NCCL' info.txt)" >&2
        finish
    fi
    export NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_MAX_CTAS=4 # few blocks, so that there is room for both ranks
    two+=(run.share_device=true)
fi
size=(run.device=cuda data.val= model.d_model=16 model.n_layer=1 data.seq_len=16 data.batch=4 data.micro_batch=1
    run.steps=6 optim.warmup_steps=2 comm.verify_replicas=2 comm.timeout_s=60)
last=checkpoints/step-00000006

check "one rank" train one "${size[@]}"
check "two ranks" on_ranks 2 two "${size[@]}" "${two[@]}" comm.selftest=true
# fp32 sums in another order: 1e-5 relative is what the project promises.
check "the losses are those of one rank" same_losses "$(curve two)" "$(curve one)" 1e-5
check "two ranks without graphs" on_ranks 2 plain "${size[@]}" "${two[@]}" run.cuda_graph=false
check "graphs keep every bit" same_bits runs/plain/$last runs/two/$last
check "two ranks with sharded states" on_ranks 2 shard "${size[@]}" "${two[@]}" optim.shard=true
check "… have the losses of one rank" same_losses "$(curve shard)" "$(curve one)" 1e-5
check "one rank, reproducible sums" train tree-one "${size[@]}" comm.reduce=reproducible
check "two ranks, reproducible sums" on_ranks 2 tree-two "${size[@]}" "${two[@]}" comm.reduce=reproducible
check "… have every bit of one rank" same_bits runs/tree-two/$last runs/tree-one/$last
if [ ${#two[@]} -eq 1 ]; then # a device each
    check "every collective gives the right values" limited "${local_mpirun[@]}" -np 2 "$dtrain" bench --comm \
        --device cuda --last 1M --seconds 0.02 >bench.log 2>&1
    check "… and goes by NCCL" grep -q nccl bench.log
fi
# A window has two segments, one for each rank.
windows=(run.device=cuda data.val= model.{d_model=16,n_layer=1,segment=128} data.{seq_len=140,batch=2,micro_batch=1}
    run.steps=3 optim.warmup_steps=2 comm.timeout_s=60)
for sums in fast reproducible; do
    check "windows in segments, $sums sums" train "segments-$sums" "${windows[@]}" comm.reduce=$sums
    check "two ranks share them" on_ranks 2 "context-$sums" "${windows[@]}" "${two[@]}" comm.reduce=$sums comm.context=2
    check "… with the losses of one rank" same_losses "$(curve "context-$sums")" "$(curve "segments-$sums")" 1e-5
done
check "… and with reproducible sums its bits" same_bits runs/context-reproducible/checkpoints/step-00000003 \
    runs/segments-reproducible/checkpoints/step-00000003
finish
