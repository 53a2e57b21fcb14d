#!/usr/bin/env bash
# Two ranks that share a CUDA device, with MPI, have the losses of one rank and the same bits twice. Skipped without a
# device. Argument: dtrain.
# shellcheck source=tests/gpu/lib.sh
. "$(dirname "$0")/lib.sh"
small_run
size=(run.device=cuda data.val= model.d_model=16 model.n_layer=1 data.seq_len=16 data.batch=4 run.steps=6 optim.warmup_steps=2)
shared=("${size[@]}" run.share_device=true comm.backend=mpi)
last=checkpoints/step-00000006

check "one rank" train one "${size[@]}"
check "two ranks on one device" on_ranks 2 two "${shared[@]}" comm.verify_replicas=2
# fp32 sums in another order: 1e-5 relative is what the project promises.
check "the losses are those of one rank" same_losses "$(curve two)" "$(curve one)" 1e-5
check "two ranks again" on_ranks 2 again "${shared[@]}"
check "the same bits twice" same_bits runs/again/$last runs/two/$last
check "they share it only with run.share_device" bash -c '! "$@" >refused.log 2>&1' _ \
    "${local_mpirun[@]}" -np 2 "$dtrain" small.ini run.name=refused "${size[@]}" comm.backend=mpi
check "… and the error says so" grep -q share_device refused.log
finish
