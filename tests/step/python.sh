#!/usr/bin/env bash
# launch/dtrain_step.py plays a model as dtrain sample does; skipped where there is no Python.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh" "$1"
command -v python3 >/dev/null || { echo "no python3 here"; exit 77; }
export DTRAIN_STEP_LIBRARY=$2 PYTHONPATH=$repository/launch PYTHONDONTWRITEBYTECODE=1
small_run
"$dtrain" small.ini run.dir=run run.device=cpu run.threads=1 >train.log 2>&1 || cat train.log
model=$(echo run/checkpoints/step-*)
"$dtrain" sample "$model" --prompt "int" --tokens 40 --temperature 0 --device cpu >text.txt
overflowing "$model" large
sed /^vocab_size/d small.ini >policy.ini
"$dtrain" policy.ini run.dir=policy run.steps=4 run.device=cpu run.threads=1 data.train=synthetic:frames data.val= data.normalize=false \
    model.frame_size=5 'model.heads=a:categorical*3 b:bernoulli*2 c:regression*2' >policy.log 2>&1 || cat policy.log
cat >play.py <<'P'
import sys
import dtrain_step

with dtrain_step.Model(sys.argv[1], streams=2) as model:
    assert model.frame_size == 0 and model.vocab_size == 256 and list(model.outputs) == ["tokens"]
    text = list(b"int")
    for token in text[:-1]:
        model.step(token)
    state = model.save()
    for _ in range(40):
        text.append(int(model.sample(text[-1], temperature=0)["tokens"][0]))
    model.restore(state, stream=1)
    assert int(model.sample(text[2], stream=1, temperature=0)["tokens"][0]) == text[3]
    for stream in 0, 1: # the default temperature is 1
        model.restore(state, stream)
        model.seed(7, stream)
    drawn = [[model.sample(token, stream=stream, **options)["tokens"][0] for token in text]
             for stream, options in ((0, {}), (1, {"temperature": 1}))]
    model.restore(state)
    assert drawn[0] == drawn[1] != [model.sample(token, temperature=0)["tokens"][0] for token in text], drawn
    try:
        model.step(256)
        raise SystemExit("token 256 was accepted")
    except dtrain_step.Error as error:
        assert "token 256" in str(error), error

def fails(what, kind, *arguments, **options):
    try:
        what(*arguments, **options)
    except dtrain_step.Error as error:
        assert type(error) is kind, error
        return str(error)
    raise SystemExit("%s %s was accepted" % (arguments, options))

says = fails(dtrain_step.Model, dtrain_step.Error, sys.argv[1], weights="int4")
assert "'int4'" in says and "'int8'" in says, says
says = fails(dtrain_step.Model, dtrain_step.Error, sys.argv[1], ema=True)
assert "no moving average" in says and "damaged" not in says, says
with dtrain_step.Model(sys.argv[3]) as model:
    assert model.outputs == {"a": ("categorical", 3), "b": ("bernoulli", 2), "c": ("regression", 2)}, model.outputs
    state, frame = model.save(), [0.5, -1, 2, 0, 1]
    logits = model.step(frame)
    model.restore(state)
    likely = {"a": [logits["a"].index(max(logits["a"]))], "b": [x > 0 for x in logits["b"]], "c": logits["c"]}
    assert model.sample(frame, temperature=0) == likely, (logits, likely)
with dtrain_step.Model(sys.argv[2]) as model:
    state = model.save()
    assert "not finite" not in fails(model.step, dtrain_step.Error, 256)
    assert '"residual"' in fails(model.step, dtrain_step.NotFinite, 1)
    assert '"residual"' in fails(model.sample, dtrain_step.NotFinite, 1)
    assert model.save() == state
sys.stdout.buffer.write(bytes(text) + b"\n")
P
check "Python plays the model" python3 play.py "$model" large policy/checkpoints/step-* >python.txt
check "the text of Python is that of dtrain sample" cmp text.txt python.txt
finish
