#!/usr/bin/env bash
# launch/train.sbatch and launch/array.sbatch on a real Slurm of two nodes, used as by a user. If anything ends a job
# early, the job saves, is requeued unless it was cancelled, and ends with the bits of a run without interruption.
# shellcheck disable=SC2317 # functions given to check
# shellcheck source=tests/slurm/cluster.sh
. "$(dirname "$0")/cluster.sh"
start_cluster
small_run
long=(small.ini run.steps=150 model.d_model=96 data.seq_len=96)
endless=(small.ini run.steps=1000000)
last=checkpoints/step-00000150
ranks 2 "${long[@]}" run.name=alone >alone.log 2>&1 || { cat alone.log >&2; exit 1; }

whole_run() { # name: of the steps of `long`
    same_bits "runs/$1/$last" "runs/alone/$last" && cmp <(train_lines "runs/$1/metrics.jsonl") <(train_lines runs/alone/metrics.jsonl)
}

saved() { # name: there is a checkpoint of the last step, and the log says why the run stopped
    grep -q '"state":"stopped"' "runs/$1/state.json" &&
        "$dtrain" verify "runs/$1/checkpoints/step-$(printf %08d "$(steps_done "$1")")" >/dev/null
}

# ---- pre-emption with a grace time: the ranks get SIGTERM, the batch script gets nothing
export DTRAIN_LAUNCHER
for DTRAIN_LAUNCHER in srun mpirun; do submit spare-$DTRAIN_LAUNCHER --partition=spare "${long[@]}"; done
submit spare-local --partition=spare --nodes=1 --ntasks-per-node=2 "${long[@]}"
for name in spare-{srun,mpirun,local}; do check "$name: under way" wait_for_step "$name" 5; done
check "an urgent job takes their nodes" srun --partition=urgent --nodes=2 --cpus-per-task=2 true
check "… before they are done" eval '! grep -q complete runs/spare-*/state.json'
for name in spare-{srun,mpirun,local}; do
    check "$name: saves" saved "$name"
    check "$name: is requeued" test "$(restarts "$name")" -eq 1
done

# ---- meanwhile: a time limit, which Slurm checks twice a minute
submit limit --nodes=1 --nodelist=n1 --time=1 --signal=B:USR1@50 "${endless[@]}"

# ---- meanwhile: the link between two nodes is cut: the ranks end, but mpirun would never end
DTRAIN_LAUNCHER=mpirun DTRAIN_MAX_RESTARTS=0 submit cut --partition=far "${endless[@]}" comm.timeout_s=10
check "cut: under way" wait_for_step cut 5
on_node 3 ip route add unreachable 10.77.0.4
on_node 4 ip route add unreachable 10.77.0.3

# ---- two nodes by either launcher, and what is refused
for DTRAIN_LAUNCHER in srun mpirun; do
    submit $DTRAIN_LAUNCHER --gres=gpu:1 small.ini
    check "two nodes by $DTRAIN_LAUNCHER" ends_as $DTRAIN_LAUNCHER COMPLETED
    ! grep -q 'NCCL  not in this build' <("$dtrain" info) || check "$DTRAIN_LAUNCHER: a build for CPUs warns of idle GPUs" \
        says $DTRAIN_LAUNCHER 'this job has GPUs .* trains on CPUs'
    check "$DTRAIN_LAUNCHER: the map of hosts" says $DTRAIN_LAUNCHER '^dtrain: n2: rank 1 on '
done
ranks 2 small.ini run.name=here >here.log 2>&1
check "two nodes: the bits of one machine" same_bits runs/{srun,here}/checkpoints/step-00000012
check "… by either launcher" same_bits runs/{srun,mpirun}/checkpoints/step-00000012
for kind in pmi2 none; do
    srun --mpi=$kind --nodes=2 --ntasks-per-node=2 "$dtrain" small.ini run.name=$kind >$kind.log 2>&1
    check "srun --mpi=$kind: exit code 2" test $? -eq 2
    check "srun --mpi=$kind is refused once, with what to do" test "$(grep -c '^dtrain: error: ' $kind.log) $(grep -c 'srun --mpi=pmix' $kind.log)" = "1 1"
    check "srun --mpi=$kind: nothing of Open MPI's own" eval "! grep -q 'OPAL\|MPI_INIT' $kind.log"
done
srun --mpi=pmix --nodes=2 --ntasks=3 "$dtrain" small.ini run.name=unequal data.batch=6 >unequal.log 2>&1
check "three ranks on two nodes: exit code 2" test $? -eq 2
check "… are refused: $(cat unequal.log)" grep -qE '^  n[12] has 1 rank, n[12] has 2 ranks$' unequal.log
check "one command in a batch script of two tasks" sbatch --wait --nodes=2 --ntasks=2 --output=commands.log \
    --wrap="'$dtrain' --check small.ini && '$dtrain' order small.ini --steps 1:2 && '$dtrain' eval small.ini run.name=srun" >/dev/null
dtrain=absent submit absent small.ini
submit mistake small.ini data.batch=7
for name in absent mistake; do check "$name: the job fails" ends_as "$name" FAILED; done
check "an absent program is named" says absent 'no absent in .* set DTRAIN'
check "exit code 2 is not requeued" test "$(restarts mistake)" -eq 0

for name in spare-{srun,mpirun,local}; do
    check "$name: continues and completes" ends_as "$name" COMPLETED
    check "$name: the bits and the curve of a run left alone" whole_run "$name"
    check "$name: says which start it is" says "$name" "Slurm job ${job[$name]}, restart 1"
    check "$name: one log" test "$(grep -c "^dtrain: runs/$name: " "$name.log")" -eq 2
done

# ---- scancel: everything is saved and nothing requeued; without checkpoint.on_signal nothing is saved either
# A step takes longer than the second that mpirun gives its ranks after it gets SIGTERM itself.
for DTRAIN_LAUNCHER in srun mpirun; do submit cancel-$DTRAIN_LAUNCHER "${endless[@]}" model.d_model=96 data.batch=768; done
for name in cancel-{srun,mpirun}; do check "$name: under way" wait_for_step "$name" 1; done
check "a task of one CPU keeps to it, with all its threads" test \
    "$(cat /proc/"$(pid_on n1 cancel-srun)"/task/*/status | grep Cpus_allowed_list | sort -u | grep -c '[0-9]')" -eq 1
check "… one" eval "! grep -q 'Cpus_allowed_list:.*[-,]' /proc/$(pid_on n1 cancel-srun)/status"
scancel "${job[cancel-srun]}" "${job[cancel-mpirun]}"
for name in cancel-{srun,mpirun}; do
    check "$name: ends" ends_as "$name" CANCELLED
    check "$name: saves" saved "$name"
    check "$name: is not requeued" says "$name" 'not requeued: it was cancelled'
done
submit careless --nodes=1 "${endless[@]}" checkpoint.on_signal=false
check "careless: under way" wait_for_step careless 5
scancel --batch --signal=USR1 "${job[careless]}"
check "careless: ends" ends_as careless COMPLETED
check "checkpoint.on_signal = false: not requeued" says careless 'not requeued: checkpoint.on_signal'

# ---- a signal while the job starts is not lost, and does not kill a process that is not dtrain yet
for delay in 0 0.3; do
    signal=USR1
    [ $delay = 0 ] || signal=TERM # some clusters pre-empt this way: only the batch script gets the signal
    for DTRAIN_LAUNCHER in srun mpirun; do submit early-$DTRAIN_LAUNCHER-$delay "${endless[@]}"; done
    for name in early-{srun,mpirun}-$delay; do
        check "$name: starts" wait_until pids "$name" >/dev/null
        sleep $delay
        scancel --batch --signal=$signal "${job[$name]}"
    done
    for name in early-{srun,mpirun}-$delay; do
        check "$name: is requeued" wait_until says "$name" 'requeued: continues'
        check "$name: without a fault" eval "! says $name 'exit code'"
        scancel "${job[$name]}"
    done
done

check "limit: is requeued" wait_until says limit 'requeued: continues'
check "limit: saves" wait_until says limit 'resuming from runs/limit/checkpoints/step'
scancel "${job[limit]}"

# ---- a lost node, by mpirun
DTRAIN_LAUNCHER=mpirun submit lost "${long[@]}" checkpoint.every=20
check "lost: under way" wait_for_step lost 25
kill -KILL "${node[2]}"
check "a lost node: the job is requeued" wait_until says lost 'requeued: continues'
start_node 2
check "a lost node: it comes back" wait_until srun --quiet --nodes=1 --nodelist=n2 true 2>/dev/null

# ---- a lost rank with srun, which gives the others time for last words
DTRAIN_LAUNCHER=srun submit killed "${long[@]}" checkpoint.every=20 comm.timeout_s=10
check "killed: under way" wait_for_step killed 25
kill -KILL "$(pid_on n2 killed)"

# ---- meanwhile: a fault at each start and a full disk: exit code 3, and a limit of restarts
mkdir -p runs/full
on_node 1 mount -t tmpfs -o size=200k tmpfs "$PWD/runs/full"
DTRAIN_MAX_RESTARTS=1 submit full --nodes=1 --nodelist=n1 small.ini
check "full: fails" ends_as full FAILED
check "full: with code 3" says full 'ended with exit code 3; runs/full/state.json: .*"failed"'
check "full: restarts once" test "$(restarts full)" -eq 1
check "full: says so" says full 'not requeued: 1 restarts'

# ---- two ranks on each node, by the script and by srun alone: Slurm's PMIx notices a dead rank and ends all within a
# second
DTRAIN_MAX_RESTARTS=0 submit crowded --ntasks-per-node=2 "${endless[@]}"
check "crowded: under way" wait_for_step crowded 5
kill -KILL "$(pid_on n2 crowded | head -n 1)"
srun --mpi=pmix --nodes=2 --ntasks-per-node=2 --cpus-per-task=1 "$dtrain" "${endless[@]}" run.name=by-hand >by-hand.log 2>&1 &
check "by-hand: under way" wait_for_step by-hand 5
kill -KILL "$(pid_on n2 by-hand | head -n 1)"
wait $!
check "crowded: fails" ends_as crowded FAILED
for name in crowded by-hand; do
    check "$name: the last words come before Slurm ends all" says $name '^dtrain: error: rank [0-3] on host n[12] .* died at step [1-9]'
    check "$name: … and are in state.json: $(cat runs/$name/state.json)" grep -qE \
        '^\{"state":"failed",.*"reason":"rank [0-3] on host n[12]' runs/$name/state.json
done

check "killed: the job is requeued" wait_until says killed 'requeued: continues'
check "killed: its log names the rank" says killed 'task 1: Killed'
check "killed: the last words come before srun ends the step" eval \
    'sed "/Terminating StepId\|Job step aborted/q" killed.log | grep -q "^dtrain: error: rank 1 on host n2"'
check "killed: the others had time for the reason" says killed 'ended with exit code [0-9]*; .*"failed".*reason":"[^"]'
for name in lost killed; do
    check "$name: completes" ends_as $name COMPLETED
    check "$name: the next start says how the one before ended" says $name '^dtrain: .*the previous job'
    check "$name: the bits and the curve of a run left alone" whole_run $name
done

check "cut: the allocation is given back" ends_as cut FAILED
check "cut: by the script" says cut 'the run has ended, mpirun has not'
check "cut: the reason is in its log" says cut 'ended with exit code 137; .*"failed".*rank [01]'

# ---- how it scales over two nodes, measured within an allocation
job[scaling]=$(DTRAIN=$dtrain sbatch --parsable --nodes=2 --ntasks-per-node=1 --cpus-per-task=1 --output=scaling.log \
    --wrap="$repository/launch/scaling.sh small.ini --out scaling --ranks 1,2 --data synthetic --steps 2 --warmup 0 --repeats 1")

# ---- a sweep
cat >sweep.txt <<'END'
# learning rates
optim.lr=1e-3

optim.lr=2e-3 run.name=fast # a comment
END
sed -i 's/$/\r/' sweep.txt # some editors end lines this way
mkdir launch
ln -s "$repository"/launch/{train.sbatch,sweep.sh} launch/
array() { # NAME, arguments …: submits an array; task N is the job NAME-N
    local number
    number=$(DTRAIN=$dtrain sbatch --parsable --ntasks=1 --array=1-2 --cpus-per-task=1 --output="$1-%a.log" \
        "$repository/launch/array.sbatch" small.ini "${@:2}")
    job[$1-1]=${number}_1 job[$1-2]=${number}_2
}
array sweep sweep.txt
for task in 1 2; do check "sweep: task $task" ends_as sweep-$task COMPLETED; done
check "the first line has a name by file and number" grep -q '^lr = 0\?.*1e-3\|^lr = 0.001' runs/sweep-1/config.resolved.ini
check "the second its own" grep -q '^lr = 2e-3\|^lr = 0.002' runs/fast/config.resolved.ini
for name in sweep-1 fast; do check "$name: is complete" grep -q '"complete"' runs/$name/state.json; done
array tasks sweep.txt run.steps=1000000
for task in 1 2; do check "tasks-$task: under way" wait_until says tasks-$task 'dtrain: step 20/'; done
scancel --batch --signal=USR1 "${job[tasks-1]}"
check "a task of a sweep is requeued" wait_until says tasks-1 'requeued: continues'
check "… and starts again" wait_until says tasks-1 'resuming from'
check "… alone" job_is tasks-2 RUNNING
check "… the other was not restarted" test "$(restarts tasks-2)" -eq 0
scancel "${job[tasks-1]}" "${job[tasks-2]}"
sed -i 's/fast/sweep-1/' sweep.txt
array shared sweep.txt
check "a sweep whose runs share a name is refused" ends_as shared-1 FAILED
check "… with the lines" says shared-1 'lines 1 and 2 would both train in runs/sweep-1'

if command -v python3 >/dev/null; then
    check "scaling over two nodes" ends_as scaling COMPLETED
    check "… is in the table" says scaling '^ +strong +synthetic +2 +2 +8 '
    check "… without a wrong value" test "$(grep -o '"wrong": 0' scaling/scaling.json | wc -l)" -ge 5
fi
finish
