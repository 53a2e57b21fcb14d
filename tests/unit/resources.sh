#!/usr/bin/env bash
# resources.sh DTRAIN REPEAT MAKE_EPISODES: commands that run many times in one process leave no descriptor, identifier
# of libhdf5, thread, memory or temporary file behind (repeat.c).
repeat=$(realpath "$2") make_episodes=$(realpath "$3")
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh" "$1"
small_run
"$make_episodes" robomimic episodes.h5 0 13
"$make_episodes" episodes own.h5 0 13
policy_ini policy.ini run.{steps=6,device=cpu,threads=1} data.{train=episodes.h5,val=,val_fraction=0.3} \
    data.{inputs='obs/a obs/b:id*7',targets=actions} 'model.heads=buttons:bernoulli*2 stick:categorical*5' log.eval_every=3 checkpoint.every=2
sed 's|^train = .*|train = data/train-*.h5:2 packed/train-*.h5:1|; s/^block.*/&\nmicro_batch = 4/' small.ini >mixture.ini
"$dtrain" pack -o packed --val 0 words.txt >pack.log 2>&1
"$dtrain" small.ini run.{name=model,device=cpu,threads=1} optim.ema=0.9 >model.log 2>&1 || { cat model.log >&2; exit 1; }
"$dtrain" policy.ini run.name=policy >policy.log 2>&1 || { cat policy.log >&2; exit 1; }
cat >list.txt <<'END'
pack --force -o packed --val 0.2 text
verify data/train-00000.h5 data/val-00000.h5 episodes.h5 own.h5
--check small.ini run.device=cpu run.threads=1
--check policy.ini run.name=checked
small.ini run.name=run-{} run.device=cpu run.threads=1 optim.ema=0.9 log.eval_every=4 checkpoint.every=3 checkpoint.keep=2
small.ini run.name=run-{} run.device=cpu run.threads=1 optim.ema=0.9 log.eval_every=4 checkpoint.every=3 run.steps=15
small.ini run.name=carry-{} run.device=cpu run.threads=1 data.carry_state=true data.shuffle=false data.block=1 optim.name=muon log.trace_steps=2:4
mixture.ini run.name=mixture-{} run.device=cpu run.threads=1 optim.rollback=3 comm.reduce=reproducible checkpoint.every=3
small.ini run.name=segments-{} run.device=cpu run.threads=1 data.seq_len=128 model.segment=64 model.recompute=block
policy.ini run.name=policy-{}
policy.ini run.name=policy-{} run.steps=9
order small.ini --steps 1:3
eval small.ini run.name=model run.device=cpu run.threads=1 optim.ema=0.9 --positions
predict runs/policy -o predicted.h5 --force --hidden
sample runs/model --tokens 20
export runs/model exported-{} --shard-mb 1 --int8
bench --comm --last 64 --max-memory 1 --seconds 0.001
bench --step --d-model 8 --n-layer 1 --seq-len 8 --batch 2 --vocab 16 --device cpu --threads 1 --seconds 0.001
bench --play --d-model 8 --n-layer 1 --seq-len 8 --vocab 16 --seconds 0.001
bench --reader data/train-00000.h5 --seconds 0.001
! verify words.txt data/train-00000.h5 absent.h5
! verify runs/run-{}/checkpoints/absent
! --check small.ini optim.lr=x model.d_modle=3
! --check small.ini data.val=absent
! small.ini run.name=refused data.train=words.txt
! policy.ini run.name=refused data.inputs=obs/none
! eval small.ini run.name=absent
! predict runs/policy -o predicted.h5
! sample runs/absent
! pack -o packed text
END
check "every command, three times over" "$repeat" 3 <list.txt
check "temporary files: $(find . -name '*tmp*')" test -z "$(find . -name '*tmp*')"
finish
