# Sourced by the scripts here: what mpirun needs on one machine.
# shellcheck shell=bash

# Root in a container is a user like any other.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# A machine without ssh still runs ranks of its own.
command -v ssh >/dev/null || export OMPI_MCA_plm_rsh_agent=/bin/false

# mpirun on this machine alone, more ranks than cores allowed, threads left to dtrain.
# shellcheck disable=SC2034
local_mpirun=(mpirun --oversubscribe --bind-to none)
