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
    model.frame_size=5 'model.heads=a:categorical*3 b:bernoulli*2 c:regression*2 d:quantile(0.2,0.6)*2 e:gmm(1)' >policy.log 2>&1 || cat policy.log
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
    assert model.outputs == {"a": ("categorical", 3), "b": ("bernoulli", 2), "c": ("regression", 2),
                             "d": ("quantile", 4), "e": ("gmm", 3)}, model.outputs
    state, frame = model.save(), [0.5, -1, 2, 0, 1]
    logits = model.step(frame)
    model.restore(state)
    likely = {"a": [logits["a"].index(max(logits["a"]))], "b": [x > 0 for x in logits["b"]], "c": logits["c"],
              "d": logits["d"][2:], "e": logits["e"][1:2]}
    assert model.sample(frame, temperature=0) == likely, (logits, likely)
    def drawn(first): # nothing of draws before the seed is left
        model.restore(state)
        first(frame)
        model.seed(5)
        return [model.sample(frame) for _ in range(9)]
    assert drawn(model.step) == drawn(model.sample)
with dtrain_step.Model(sys.argv[2]) as model:
    state = model.save()
    assert "not finite" not in fails(model.step, dtrain_step.Error, 256)
    assert '"residual"' in fails(model.step, dtrain_step.NotFinite, 1)
    assert '"residual"' in fails(model.sample, dtrain_step.NotFinite, 1)
    assert model.save() == state
sys.stdout.buffer.write(bytes(text) + b"\n")
P
cat >installed.py <<'P'
import sys
import dtrain_step
with dtrain_step.Model(sys.argv[1]) as model:
    assert "installed" in dtrain_step.__file__ and model.vocab_size == 256
P
cmake --install "$(dirname "$dtrain")" --prefix "$PWD/installed" >install.log 2>&1
check "the installed module finds the installed library" env -u DTRAIN_STEP_LIBRARY \
    PYTHONPATH="$(dirname "$(find "$PWD/installed" -name dtrain_step.py)")" python3 installed.py "$model"

# Frames: as lists, arrays of any type, and batches.
cat >frames.ini <<'P'
[run]
steps = 2
precision = fp32
device = cpu
[model]
d_model = 8
layers = gru
heads = buttons:bernoulli*3 stick:categorical*5 aim:regression*2
frame_size = 7
[data]
train = synthetic:frames
seq_len = 8
batch = 4
normalize = false
[optim]
lr = 1e-2
P
"$dtrain" frames.ini run.dir=frames >train.log 2>&1 || cat train.log
cat >frames.py <<'P'
import array
import sys
import dtrain_step

S, T, F = 5, 4, 7
frames = [[[(s * 31 + t * 7 + i * 3) % 11 / 8 - 0.5 for i in range(F)] for s in range(S)] for t in range(T)]
with dtrain_step.Model(sys.argv[1], streams=S) as one, dtrain_step.Model(sys.argv[1], streams=S) as all_:
    assert one.frame_size == F and one.outputs == {"buttons": ("bernoulli", 3), "stick": ("categorical", 5),
                                                   "aim": ("regression", 2)}, one.outputs
    for t in range(T):
        kinds = [list, tuple, lambda f: array.array("f", f), lambda f: array.array("d", f), iter]
        drawn = [one.sample(kind(f), stream=s, temperature=t % 2) for s, (f, kind) in enumerate(zip(frames[t], kinds))]
        together = all_.batch(frames[t], temperature=t % 2)
        assert [len(v) for v in together.values()] == [S] * 3 and len(together["aim"][0]) == 2
        assert together == {name: [d[name] for d in drawn] for name in together}, (together, drawn)
    assert one.save(3) == all_.save(3)
    step = one.step(frames[0][0])
    assert list(map(len, step.values())) == [3, 5, 2] and step == all_.step(array.array("f", frames[0][0]))
    part = all_.batch(frames[1][:2], first=3, temperature=0)
    alone = [one.sample(frames[1][i], stream=3 + i, temperature=0) for i in range(2)]
    assert part == {name: [values[name] for values in alone] for name in part}
    one.feed({"buttons": [0, 1, 0], "stick": [4], "aim": [0.5, 1]}, stream=1)
    for what in (lambda: one.sample(frames[0][0][1:]), lambda: one.sample(array.array("f", frames[0][0] * 2)),
                 lambda: one.sample(array.array("i", [1] * F + [1])), lambda: one.sample(["a"] * F),
                 lambda: one.sample([1e39] + [0] * 6), lambda: one.sample(frames[0][0], ids=[1]),
                 lambda: one.batch(frames[0] + frames[0]), lambda: one.batch([]), lambda: one.batch(frames[0], first=1),
                 lambda: one.feed({"buttons": [0, 1, 0]}), lambda: one.sample([float("nan")] * F)):
        try:
            what()
        except dtrain_step.Error as error:
            assert str(error), what
        else:
            raise SystemExit("a wrong argument was accepted")
    # An array of the right number of bytes but of another type is converted, not taken as it is.
    assert one.sample(array.array("i", [1] * F), stream=2, temperature=0) == all_.sample([1.0] * F, stream=2, temperature=0)
    try:
        import numpy
    except ImportError:
        sys.exit()
    for type_ in "f4", "f8", "i8":
        for model in one, all_:
            model.reset(numpy.int64(0)), model.reset(1)
        rows = numpy.array(frames[0][:2]).astype(type_)
        got = one.batch(rows, temperature=0)
        want = all_.batch(rows.tolist(), temperature=0)
        assert isinstance(got["aim"], numpy.ndarray) and got["aim"].shape == (2, 2)
        assert {k: v.tolist() for k, v in got.items()} == want, (type_, got, want)
        assert one.sample(numpy.asfortranarray(rows)[0], stream=numpy.int64(1)) == all_.sample(rows[0].tolist(), stream=1)
P
check "Python plays frames of any type, one by one and in batches" python3 frames.py frames/checkpoints/step-00000002
check "Python plays the model" python3 play.py "$model" large policy/checkpoints/step-* >python.txt
check "the text of Python is that of dtrain sample" cmp text.txt python.txt
finish
