#!/usr/bin/env bash
# launch/dtrain_step.py plays a model as dtrain sample does. Skipped without Python.
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
    # Text equals that of dtrain sample, in pieces or for several prompts at once, up to where it ends.
    whole = bytes(text).decode(errors="replace")
    assert "int" + "".join(model.generate("int", tokens=40, temperature=0)) == whole
    assert model.complete(["int", "int"], tokens=40, temperature=0) == [whole[3:]] * 2
    apart = ["".join(model.complete([prompt], tokens=30, top_k=20, seed=seed)) for prompt, seed in (("int", 5), ("a", 6))]
    assert model.complete(["int", "a"], tokens=30, top_k=20, seed=5) == apart
    assert "".join(model.generate("int", tokens=40, top_p=1e-9)) == whole[3:]
    stop = whole[9:12]
    pieces = list(model.generate("int", tokens=40, temperature=0, stop=[stop, "\0\0"]))
    assert "".join(pieces) == whole[3:whole.index(stop, 3)], (pieces, whole)
    assert "".join(model.generate("int", tokens=40, temperature=0, stop_tokens=[text[6]])) == \
        whole[3:3 + text[3:].index(text[6])]
    for options in ({"top_p": 0}, {"min_p": 2}, {"top_k": -1}, {"repetition_penalty": 0}, {"temperature": -1}):
        try:
            model.complete(["int"], **options)
            raise SystemExit("%s was accepted" % options)
        except dtrain_step.Error as error:
            assert list(options)[0].split("_")[-1] in str(error), error
    model.restore(state)
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
check "a wheel" python3 "$repository/cmake/wheel.py" "$2" "$repository/launch/dtrain_step.py" 1.2.3 . >wheel.log
if python3 -m pip --version >wheel.log 2>&1; then
    check "… which pip installs" python3 -m pip install -q --no-index --no-deps --target installed-wheel dtrain_step-1.2.3-*.whl >wheel.log 2>&1
else
    check "… which is a zip file" python3 -m zipfile -e dtrain_step-1.2.3-*.whl installed-wheel
fi
check "its module finds its library" env -u DTRAIN_STEP_LIBRARY PYTHONPATH="$PWD/installed-wheel" python3 installed.py "$model"

# Frames as lists, as arrays of any type, and in batches.
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

# The example of the manual and that of the module, in environments with gymnasium's interface; chunks of three steps.
"$(dirname "$dtrain")/data/game" game 11 5 >game.log
"$dtrain" frames.ini run.dir=chunk data.train='game/train-*.h5' data.inputs=frames data.targets=targets/main_x@0:3 data.stride=8 model.frame_size=auto \
    model.heads='action:categorical*17 second:categorical*17 third:categorical*17' >train.log 2>&1 || cat train.log
"$dtrain" frames.ini run.dir=walk model.heads=action:regression*2 >train.log 2>&1 || cat train.log
sed -n '/^def play(env/,/^```/{/^```/d;p}' "$repository/launch/README.md" >example.py
sed -n '/^    envs = gymnasium/,/^$/s/^    //p' "$repository/launch/dtrain_step.py" >many.py
cat >environments.py <<'P'
import sys
import types
import dtrain_step

walk, chunk = sys.argv[1:]
exec(open("example.py").read())

class Env:
    """Ends after `length` steps, or is cut off; what it shows follows from the actions."""

    def __init__(self, width, length, cut=False):
        self.width, self.length, self.cut, self.actions = width, length, cut, []

    def reset(self, *, seed=None, options=None):
        self.t = 0
        self.frame = [0.1 * i for i in range(self.width)]
        return self.frame, {}

    def step(self, action):
        self.t += 1
        self.actions.append(list(action))
        self.frame = [(x + action[0] + self.t) % 3 for x in self.frame]
        return self.frame, 1.0, self.t == self.length and not self.cut, self.t == self.length and self.cut, {}

for cut in False, True:
    env = Env(7, 5, cut)
    assert play(env, walk) == 5
with dtrain_step.Model(walk) as model:
    again, (frame, _) = Env(7, 5), Env(7, 5).reset()
    again.reset()
    for action in env.actions:
        assert model.sample(frame, temperature=0)["action"] == action and model.chunk == model.action_steps == 1
        frame = again.step(action)[0]
env = Env(11, 8)
assert play(env, chunk, action_steps=2) == 8
with dtrain_step.Model(chunk) as model:
    again, (frame, _) = Env(11, 8), Env(11, 8).reset()
    again.reset()
    assert model.chunk == 3 and model.action_steps == 1
    for t, action in enumerate(env.actions):
        new = model.sample(frame, temperature=0)
        drawn = new if t % 2 == 0 else drawn
        assert action == drawn["second" if t % 2 else "action"], t
        frame = again.step(action)[0]
for steps in -1, 4:
    try:
        dtrain_step.Model(chunk, action_steps=steps)
        raise SystemExit("action_steps %d was accepted" % steps)
    except dtrain_step.Error as error:
        assert "action_steps is %d, not in 1 … 3" % steps in str(error), error

try:
    import numpy
except ImportError:
    sys.exit()

class Envs:
    """As gymnasium's vectors: the step after an environment's end resets it, and gives its first frame."""
    num_envs = 2

    def __init__(self):
        self.envs, self.ended, self.shown = [Env(7, 3), Env(7, 4, True)], [False] * 2, []

    def reset(self):
        return numpy.array([env.reset()[0] for env in self.envs], dtype=numpy.float32), {}

    def step(self, actions):
        self.shown.append([[env.t, *action] for env, action in zip(self.envs, actions.tolist())])
        got = [(*env.reset(), 0, 0) if ended else env.step(action)[:1] + (1.0, env.t == env.length, False)
               for env, ended, action in zip(self.envs, self.ended, actions.tolist())]
        self.ended = [bool(one[2]) and one[1] == 1.0 for one in got]
        frames = numpy.array([one[0] for one in got], dtype=numpy.float32)
        return frames, numpy.zeros(2), numpy.array(self.ended), numpy.zeros(2, bool), {}

envs = Envs()
gymnasium = types.SimpleNamespace(make_vec=lambda name, num_envs: envs)
exec(open("many.py").read().replace("runs/walk/checkpoints/best", walk))
assert len(envs.shown) == 1000
for i in 0, 1: # every episode begins like the first one, so all of them are equal
    by_t = {}
    for row in envs.shown:
        by_t.setdefault(row[i][0], set()).add(tuple(row[i][1:]))
    assert len(by_t) == envs.envs[i].length + 1 and all(len(actions) == 1 for actions in by_t.values()), by_t
P
check "the examples play environments of gymnasium's shape" python3 environments.py walk/checkpoints/step-* chunk/checkpoints/step-*
check "the module measures a step" grep -qE '^C [0-9.]+ us a step; Python: sample [-0-9.]+ more, of a list [-0-9.]+, step [-0-9.]+$' \
    <(python3 "$repository/launch/dtrain_step.py" walk/checkpoints/step-*)
check "… of tokens too" grep -q '^C ' <(python3 "$repository/launch/dtrain_step.py" "$model")
messages=0
refused "no model to measure" 'dtrain_step.py: cannot open nowhere/config.json' python3 "$repository/launch/dtrain_step.py" nowhere
check "Python plays frames of any type, one by one and in batches" python3 frames.py frames/checkpoints/step-00000002
check "Python plays the model" python3 play.py "$model" large policy/checkpoints/step-* >python.txt
check "the text of Python is that of dtrain sample" cmp text.txt python.txt
finish
