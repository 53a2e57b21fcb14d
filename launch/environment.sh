# Sourced by the other scripts: mpirun on one machine.
# shellcheck shell=bash

# Containers often run as root.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Local ranks need no ssh.
command -v ssh >/dev/null || export OMPI_MCA_plm_rsh_agent=/bin/false

# As it starts, Open MPI asks for the address of "localhost" several times. Where /etc/hosts has no line for it (some
# containers) and the name server does not answer, each question takes five seconds unless told otherwise.
export RES_OPTIONS=${RES_OPTIONS-timeout:1 attempts:1}

# Without it mpirun may hang at its end: a rank that was killed may have held a lock in the memory that it shares with
# PMIx's server, as every rank does for a moment at the start.
export PMIX_MCA_gds=hash

# dtrain binds its threads itself. Open MPI binds each rank to a core and refuses more ranks than cores, unless told
# otherwise; MPICH does neither.
# shellcheck disable=SC2034
local_mpirun=(mpirun)
[[ $(mpirun --version 2>&1) != *"Open MPI"* ]] || local_mpirun+=(--oversubscribe --bind-to none)
