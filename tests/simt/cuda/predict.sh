#!/usr/bin/env bash
# predict.sh DTRAIN PREDICT_TOOL MAKE_EPISODES: predictions on the simulated device, whose memory the host cannot read,
# equal those of a pass on the CPU, with the same bits on one rank and on two.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../../lib.sh"
tool=$(realpath "$2") make_episodes=$(realpath "$3")
export SIMT_DEVICES=2
small_run
sed -i 's/^d_model = .*/d_model = 16/; s/^seq_len = .*/seq_len = 11/; s/^batch = .*/batch = 4/' small.ini
"$dtrain" small.ini run.name=tokens run.steps=2 optim.warmup_steps=1 run.device=cpu >train.log 2>&1 || cat train.log >&2
head -c 300 words.txt >short.txt
"$dtrain" pack -o short --val 0 short.txt >pack.log 2>&1
"$make_episodes" robomimic episodes.h5 0 13
sed -e '/^vocab_size/d' -e "s/^train = .*/train = episodes.h5/; s/^val = .*//" small.ini >policy.ini
"$dtrain" policy.ini run.name=policy run.steps=2 optim.warmup_steps=1 run.device=cpu model.autoregressive=true \
    model.heads='buttons:bernoulli*2 stick:categorical*5' data.inputs='obs/a obs/b:id*7' data.targets=actions >train.log 2>&1 || cat train.log >&2

predicts() { # run, data, arguments …: on one device and on two
    local name=$1 data=$2
    shift 2
    for n in 1 2; do
        check "$name on $n devices" ranks "$n" predict "runs/$name" --data "$data" run.device=cuda -o "$name-$n.h5" "$@" >"$name-$n.log" 2>&1
    done
    check "$name: two devices have the bits of one" cmp "$name-1.h5" "$name-2.h5"
}
predicts tokens short/train-00000.h5 --hidden
check "tokens: as on the CPU" "$tool" "$(newest runs/tokens)" short/train-00000.h5 400 tokens-1.h5 >tool.log 2>&1
predicts policy episodes.h5 --hidden
check "policy: as on the CPU" "$tool" "$(newest runs/policy)" episodes.h5 64 policy-1.h5 'obs/a obs/b:id*7' actions >tool.log 2>&1
check "draws" "$dtrain" predict runs/policy --data episodes.h5 run.device=cuda -o drawn.h5 --draw >drawn.log 2>&1
check "draws as on the CPU" "$dtrain" predict runs/policy --data episodes.h5 run.device=cpu -o drawn-cpu.h5 --draw >drawn.log 2>&1
check "bf16" "$dtrain" predict runs/policy --data episodes.h5 run.device=cuda run.precision=bf16 -o bf16.h5 --hidden >bf16.log 2>&1
finish
