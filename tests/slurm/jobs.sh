#!/usr/bin/env bash
# launch/train.sbatch on a real Slurm of two nodes, as a user submits it.
# shellcheck source=tests/slurm/cluster.sh
. "$(dirname "$0")/cluster.sh"
start_cluster 2
small_run

for launcher in srun mpirun; do
    check "two nodes by $launcher" completes "$(submit --job-name=$launcher small.ini run.name=$launcher)"
done
ranks 2 small.ini run.name=alone >alone.log 2>&1
check "the two launchers: the same bits" same_bits runs/{srun,mpirun}/checkpoints/step-00000012
check "… those of one machine" same_bits runs/{srun,alone}/checkpoints/step-00000012
finish
