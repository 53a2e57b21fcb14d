#!/usr/bin/env bash
# Measures how a training job scales: short runs of one configuration on several numbers of ranks, by
# mpirun on this machine or by srun inside a Slurm allocation. Prints a table and writes scaling.svg and
# scaling.json with a model fitted to the measurements, which predicts 64 to 4,096 ranks.
# Needs only python3.
#
#   launch/scaling.sh CONFIG --ranks 1,2,4,8 [--weak] [--strong] [options] [section.key=value …]
#   launch/scaling.sh --help
set -euo pipefail
here=$(dirname "$0")
command -v python3 >/dev/null || { echo "scaling.sh: needs python3" >&2; exit 2; }
# shellcheck source=launch/environment.sh
. "$here/environment.sh"
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1} # srun does not inherit --cpus-per-task
# shellcheck disable=SC2154
exec python3 "$here/scaling/measure.py" --launcher "${local_mpirun[*]} -np" "$@"
