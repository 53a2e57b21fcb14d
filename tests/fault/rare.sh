#!/usr/bin/env bash
# Rare events change nothing else. A run that validates, compares replicas and saves after every step, with a moving
# average, failing saves, few descriptors, and every call interrupted or cut short, ends with the bits and the losses of
# a run that only trains.
#   rare.sh DTRAIN INTERPOSE
library=$2
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
small_run
sed -i 's/^d_model = .*/d_model = 16/; s/^vocab_size = .*/vocab_size = 259/; s/^seq_len = .*/seq_len = 16/; s/^steps = .*/steps = 24/' small.ini
sed -i 's/^block = .*/shuffle = false\ncarry_state = true\nmicro_batch = 2/' small.ini
last=checkpoints/step-00000024
events=(log.eval_every=1 log.eval_batches=2 comm.verify_replicas=1 checkpoint.every=1 checkpoint.best=true optim.ema=0.9)

same() { # run, run: the same training; counts of validations and saves in the state may differ
    local file counts='"(step|updates|skips|skipped_in_a_row|tokens)"'
    for file in model carried optimizer-00001-of-00001; do
        cmp "runs/$1/$last/$file.safetensors" "runs/$2/$last/$file.safetensors" || return
    done
    cmp <(train_lines "runs/$1/metrics.jsonl") <(train_lines "runs/$2/metrics.jsonl") &&
        cmp <(grep -E "$counts" "runs/$1/$last/trainer.json") <(grep -E "$counts" "runs/$2/$last/trainer.json")
}
evals() { # run: losses of its validations
    grep -o '"event":"eval".*' "runs/$1/metrics.jsonl"
}
faulty() { # settings of FAULT, name, arguments …: with so few descriptors that one lost in a save or a validation shows
    (ulimit -n 80 && exec env FAULT="$1" LD_PRELOAD="$library" "$dtrain" small.ini run.name="$2" "${@:3}") >"$2.log" 2>&1
}

for reduce in fast reproducible; do
    how=(comm.reduce=$reduce)
    [ $reduce = fast ] || how+=(run.precision=bf16)
    check "$reduce: a run that only trains" "$dtrain" small.ini run.name=$reduce "${how[@]}" >$reduce.log 2>&1
    check "$reduce: with everything after every step" faulty "" $reduce-all "${how[@]}" "${events[@]}"
    check "$reduce: … the same training" same $reduce $reduce-all
done
check "24 validations" test "$(evals fast-all | wc -l)" -eq 24

# Saves fail before the rename and at it. Training, validation and the last save are as before.
check "saves fail" faulty "call=rename path=checkpoints/step- at=2 times=16 do=eio" failing "${events[@]}"
check "… and are reported: $(grep -c 'is not saved' failing.log)" test "$(grep -c 'is not saved' failing.log)" -gt 5
check "… the same training" same fast failing
check "… the same validations" cmp <(evals fast-all) <(evals failing)
check "… nothing temporary is left" test -z "$(find runs/failing -name '*.tmp*')"

# A best checkpoint that was not saved does not count, in state.json either.
(exec env FAULT="call=rename path=checkpoints/step- at=1 times=0 do=eio" LD_PRELOAD="$library" "$dtrain" small.ini run.name=unsaved run.steps=1000000 \
    log.every=1000000 log.eval_every=500 log.eval_batches=1 checkpoint.best=true checkpoint.on_signal=false) >unsaved.log 2>&1 &
job=$!
check "unsaved: the best one fails" wait_until grep -q 'step 500 is not saved' unsaved.log
kill -USR1 $job
wait $job
check "unsaved: exit code $?" test $? -eq 0
check "unsaved: $(cat runs/unsaved/state.json)" grep -q '"state":"stopped","step":[0-9]*,"reason":"SIGUSR1"}' runs/unsaved/state.json

# Calls that signals interrupt, and calls that transfer half of what was requested.
for kind in eintr part; do
    check "$kind: at every write, sync and read" faulty "call=write,fsync,read,get path=/$kind/ at=1 times=0 do=$kind" $kind \
        "${events[@]}" run.dir="$PWD/runs/$kind"
    check "$kind: … the same training" same fast $kind
    check "$kind: resuming" faulty "call=write,fsync,read,get path=.d/ at=1 times=0 do=$kind" $kind "${events[@]}" run.steps=26
    check "$kind: … from the last step" grep -q 'resuming from .*step-00000024' $kind.log
done
finish
