"""Plays a model that dtrain trained, from Python: a thin layer over libdtrain_step (ctypes, no other package).

    import dtrain_step
    with dtrain_step.Model("runs/policy/checkpoints/step-00001000") as model:
        print(model.frame_size, model.outputs)
        for frame in frames:                       # frame_size floats: a list, or (faster) an array of float32
            values = model.sample(frame, temperature=0)["buttons"]

Environments of gymnasium, many at once, each with a stream of its own:

    envs = gymnasium.make_vec("Walker2d-v5", num_envs=8)
    frames, _ = envs.reset()
    ended = numpy.zeros(envs.num_envs, bool)
    with dtrain_step.Model("runs/walk/checkpoints/best", streams=envs.num_envs) as model:
        for _ in range(1000):
            actions = model.batch(frames, temperature=0)["action"]     # [8, …], as the frames are an array
            frames, rewards, ends, cuts, _ = envs.step(actions)
            for stream in numpy.flatnonzero(ended):                    # the step after an end gives the next first frame
                model.reset(stream)
            ended = ends | cuts

Text of a language model, as it is generated; the checkpoint's tokenizer.json is read by the package tokenizers, and a model of
256 tokens needs none:

    with dtrain_step.Model("runs/first/checkpoints/step-00002000", streams=2) as model:
        for piece in model.generate("int main", tokens=100, top_p=0.9, stop=["\n\n"]):
            print(piece, end="", flush=True)
        texts = model.complete(["int main", "struct"], temperature=0)

python3 dtrain_step.py MODEL PROMPT prints such a text. python3 dtrain_step.py MODEL measures what a step costs here and in the C library alone.

The library is found as DTRAIN_STEP_LIBRARY, beside an installed copy of this file, or by the system's loader as
libdtrain_step.so.1.
"""
import ctypes
import glob
import os
import struct
import sys
import time

_KINDS = ("categorical", "bernoulli", "regression", "gmm", "quantile")
_WEIGHTS = {"as stored": 0, "fp32": 1, "bf16": 2, "int8": 3}


class Options(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32) for name in ("streams", "threads", "weights", "ema", "action_steps")]


class Info(ctypes.Structure):
    _fields_ = (
        [(name, ctypes.c_int32) for name in ("streams", "threads", "weights", "n_ids")]
        + [(name, ctypes.c_int64) for name in ("frame_size", "vocab_size", "parameters", "state_bytes")]
        + [(name, ctypes.c_int32) for name in ("n_outputs", "n_values", "n_targets", "chunk", "action_steps")])


class Output(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char * 32)] + [
        (name, ctypes.c_int32) for name in ("kind", "first", "width", "target", "target_width")]


class Choice(ctypes.Structure):
    _fields_ = [(name, ctypes.c_double) for name in ("temperature", "top_p", "min_p", "repetition_penalty")] + [
        ("top_k", ctypes.c_int64)]


class Error(Exception):
    """A wrong argument, input or file, or no memory: the message says which."""


class NotFinite(Error):
    """An output of a step is infinite or no number. The stream is as before the step."""


_NOT_FINITE = 4


def _load():
    path = os.environ.get("DTRAIN_STEP_LIBRARY")
    here = os.path.dirname(os.path.abspath(__file__))  # PREFIX/lib/python3.X/site-packages
    found = glob.glob(os.path.join(here, "libdtrain_step.so.1")) + glob.glob(  # of a wheel
        os.path.join(here, "..", "..", "libdtrain_step.so.1")) + glob.glob(
        os.path.join(here, "..", "..", "..", "lib*", "**", "libdtrain_step.so.1"))
    path = path or (found or ["libdtrain_step.so.1"])[0]
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        raise Error("cannot load %s: set DTRAIN_STEP_LIBRARY to its path, such as "
                    "build/src/step/libdtrain_step.so.1" % path) from error


class _Buffer:
    """n numbers in memory that the library reads and writes."""

    def __init__(self, type_, letter, n):
        self.array = (type_ * max(n, 1))()
        self.address = ctypes.addressof(self.array) if n > 0 else None
        self.view = memoryview(self.array).cast("B").cast(letter)
        self.letter = letter
        self.packers = {}

    def fill(self, values, n):
        """Copies n numbers, of a list or of an array, which may have any shape and type."""
        if type(values) is not list and type(values) is not tuple:
            try:  # memory of the right type: one copy
                memory = memoryview(values)
                if memory.format in (self.letter, "<" + self.letter):
                    self.view[:n] = memory.cast("B").cast(self.letter)
                    return
            except (TypeError, ValueError):
                pass
            values = values.tolist() if hasattr(values, "tolist") else list(values)
        while values and type(values[0]) in (list, tuple):
            values = [number for row in values for number in row]
        pack = self.packers.get(n)
        if not pack:
            pack = self.packers[n] = struct.Struct("%d%s" % (n, self.letter)).pack_into
        try:
            pack(self.array, 0, *values)
        except (struct.error, OverflowError) as error:
            raise Error("expected %d %s: %s" % (n, "numbers" if self.letter == "f" else "ids", error)) from error


class _Bytes:
    """The tokenizer of a model whose tokens are bytes."""

    def encode(self, text):
        return list(text.encode())

    def decode(self, ids):
        return bytes(ids).decode(errors="replace")


class _File:
    """tokenizer.json of a checkpoint."""

    def __init__(self, path):
        try:
            import tokenizers
        except ImportError as error:
            raise Error("%s is read by the Python package tokenizers: pip install tokenizers" % path) from error
        self.tokenizer = tokenizers.Tokenizer.from_file(path)

    def encode(self, text):
        return self.tokenizer.encode(text).ids

    def decode(self, ids):
        return self.tokenizer.decode(ids)


class _Text:
    """A prompt and what follows it, of one stream."""

    def __init__(self, model, stream, prompt, stop):
        self.tokenizer, self.stop = model.tokenizer, [text for text in stop if text]
        self.ids = self.tokenizer.encode(prompt)
        if not self.ids:
            raise Error("the prompt is empty; give at least one token")
        self.start, self.done, self.ended = len(self.ids), 0, False
        self.seen = (ctypes.c_uint8 * model.vocab_size).from_buffer(model._seen, stream * model.vocab_size)
        ctypes.memset(self.seen, 0, model.vocab_size)
        for token in self.ids:
            if not 0 <= token < model.vocab_size:
                raise Error("token %d of the prompt is not in 0 … %d: the tokenizer is not the model's"
                            % (token, model.vocab_size - 1))
            self.seen[token] = 1

    def add(self, token, stop_tokens, most):
        if token in stop_tokens:
            self.ended = True
            return
        self.ids.append(token)
        self.seen[token] = 1
        self.ended = len(self.ids) - self.start == most

    def piece(self):
        """The new text that nothing can change any more. Bytes of a character may still be missing."""
        text = self.tokenizer.decode(self.ids[self.start:])
        ends = [at for at in map(text.find, self.stop) if at >= 0]
        if ends:
            self.ended, text = True, text[:min(ends)]
        elif not self.ended:
            held = max([n for stop in self.stop for n in range(1, len(stop)) if text.endswith(stop[:n])], default=0)
            text = text[:len(text) - held]
            text = text.rstrip("\ufffd")
        new, self.done = text[self.done:], max(self.done, len(text))
        return new


class Model:
    """A model in play. Streams are numbered from 0, each with a state of its own. Of a model that predicts a chunk of
    steps (data.targets = actions@0:8) action_steps of each are played: the first row of what is drawn is the one to
    play, at every step."""

    def __init__(self, path, streams=1, threads=1, weights="as stored", ema=False, action_steps=1):
        self._handle = ctypes.c_void_p()
        self._library = _load()
        self._library.dtrain_step_close.restype = None
        self._library.dtrain_step_error.restype = None
        if weights not in _WEIGHTS:
            raise Error("weights is %r; it must be one of %s" % (weights, ", ".join(map(repr, _WEIGHTS))))
        options = Options(streams, threads, _WEIGHTS[weights], int(ema), action_steps)
        self._call("open", os.fsencode(path), ctypes.byref(options), ctypes.byref(self._handle))
        self._info = Info()
        self._call("describe", self._handle, ctypes.byref(self._info))
        self.frame_size, self.vocab_size = self._info.frame_size, self._info.vocab_size
        self.n_ids, self.parameters = self._info.n_ids, self._info.parameters
        self.streams, self.chunk, self.action_steps = self._info.streams, self._info.chunk, self._info.action_steps
        outputs = []
        for i in range(self._info.n_outputs):
            output = Output()
            self._call("describe_output", self._handle, i, ctypes.byref(output))
            outputs.append(output)
        self.outputs = {o.name.decode(): (_KINDS[o.kind], o.width) for o in outputs}
        # What a step needs is made here, once.
        self._predicted = [(o.name.decode(), o.first, o.first + o.width) for o in outputs]
        self._targets = [(o.name.decode(), o.target, o.target + o.target_width) for o in outputs]
        self._frames = _Buffer(ctypes.c_float, "f", self.streams * self.frame_size)
        self._id_width = 1 if self.vocab_size else self.n_ids
        self._ids = _Buffer(ctypes.c_int32, "i", self.streams * self._id_width)
        self._drawn = _Buffer(ctypes.c_float, "f", self.streams * self._info.n_targets)
        self._values = _Buffer(ctypes.c_float, "f", self.streams * self._info.n_values)
        self._path, self._tokenizer = path, None
        self._seen = bytearray(self.streams * self.vocab_size)
        self._batch = self._library.dtrain_step_batch
        self._batch.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p,
                                ctypes.c_double, ctypes.c_void_p, ctypes.c_void_p]

    def _fail(self, code):
        why = ctypes.create_string_buffer(2048)
        self._library.dtrain_step_error(why, ctypes.c_size_t(len(why)))
        kind = NotFinite if code == _NOT_FINITE else Error
        raise kind(why.value.decode(errors="replace").rstrip())

    def _call(self, name, *arguments):
        code = getattr(self._library, "dtrain_step_" + name)(*arguments)
        if code != 0:
            self._fail(code)

    def _run(self, frames, ids, first, n, temperature, drawn, values):
        if self.vocab_size:  # tokens
            frames, ids = None, [frames] if n == 1 and not hasattr(frames, "__len__") else frames
        if self.frame_size:
            self._frames.fill(frames, n * self.frame_size)
        if self._id_width:
            self._ids.fill(ids, n * self._id_width)
        elif len(ids):
            raise Error("%d ids, the model reads none" % len(ids))
        code = self._batch(self._handle, int(first), n, self._frames.address, self._ids.address, temperature, drawn,
                           values)
        if code != 0:
            self._fail(code)

    def step(self, frame, ids=(), stream=0):
        """Advances a stream by a frame (or a token): {output: its numbers, as dtrain_step.h lists them}."""
        self._run(frame, ids, stream, 1, 0.0, None, self._values.address)
        values = self._values.array
        return {name: values[first:end] for name, first, end in self._predicted}

    def sample(self, frame, ids=(), stream=0, temperature=1.0):
        """The same, and draws from the outputs: {output: values}. temperature 0: the most likely."""
        self._run(frame, ids, stream, 1, temperature, self._drawn.address, None)
        drawn = self._drawn.array
        return {name: drawn[first:end] for name, first, end in self._targets}

    def batch(self, frames, ids=(), first=0, temperature=1.0):
        """A frame (or token) of each of len(frames) streams at once, from stream `first` on: {output: values}, a row
        for each stream: lists, or arrays of numpy where frames is one."""
        n, width = len(frames), self._info.n_targets
        if not 0 < n <= self.streams:
            raise Error("%d frames for %d streams" % (n, self.streams))
        self._run(frames, ids, first, n, temperature, self._drawn.address, None)
        drawn = self._drawn.array
        if hasattr(frames, "__array_interface__"):
            import numpy
            rows = numpy.array(self._drawn.view[:n * width], dtype=numpy.float32).reshape(n, width)
            return {name: rows[:, at:end] for name, at, end in self._targets}
        return {name: [drawn[i + at:i + end] for i in range(0, n * width, width)] for name, at, end in self._targets}

    @property
    def tokenizer(self):
        """encode(text) and decode(ids), of the checkpoint's tokenizer."""
        if not self._tokenizer:
            path = os.path.join(os.fspath(self._path), "tokenizer.json")
            if os.path.exists(path):
                self._tokenizer = _File(path)
            elif self.vocab_size == 256:
                self._tokenizer = _Bytes()
            else:
                raise Error("%s is missing: copy the tokenizer there, or give tokens to sample()" % path)
        return self._tokenizer

    def _texts(self, prompts, tokens=400, temperature=0.8, top_k=0, top_p=1, min_p=0, repetition_penalty=1, stop=(),
               stop_tokens=(), seed=1337):
        """Advances a text a stream, token by token; yields the list of texts after each."""
        if not self.vocab_size:
            raise Error("the model reads frames, not tokens")
        if not 0 < len(prompts) <= self.streams:
            raise Error("%d prompts for %d streams" % (len(prompts), self.streams))
        choice = Choice(temperature, top_p, min_p, repetition_penalty, top_k)
        texts = [_Text(self, i, prompt, [stop] if isinstance(stop, str) else stop) for i, prompt in enumerate(prompts)]
        for stream, text in enumerate(texts):
            self.reset(stream)
            self.seed(seed + stream, stream)
            for token in text.ids[:-1]:
                self.step(token, stream=stream)
        while not all(text.ended for text in texts):
            for stream, text in enumerate(texts):
                if text.ended:
                    continue
                self._ids.array[0] = text.ids[-1]
                code = self._library.dtrain_step_choose(self._handle, stream, 1, ctypes.c_void_p(self._ids.address),
                                                        ctypes.byref(choice), text.seen,
                                                        ctypes.c_void_p(self._drawn.address))
                if code != 0:
                    self._fail(code)
                text.add(int(self._drawn.array[0]), stop_tokens, tokens)
            yield texts

    def generate(self, prompt, **options):
        """Yields the text that follows a prompt in pieces, on stream 0. Options, with defaults: tokens=400, temperature=0.8,
        top_k=0, top_p=1, min_p=0, repetition_penalty=1, stop=() (texts), stop_tokens=() (ids), seed=1337."""
        for text, in self._texts([prompt], **options):
            yield text.piece()

    def complete(self, prompts, **options):
        """What follows each of several prompts, on streams 0, 1, …; the same options, stream i has the seed seed + i."""
        texts, out = [], [""] * len(prompts)
        for texts in self._texts(prompts, **options):
            for i, text in enumerate(texts):
                out[i] += text.piece()
        return out

    def feed(self, values, stream=0):
        """What was played after the stream's last step, {output: values}, if that is not what was drawn: a model that
        reads its earlier actions sees these."""
        targets = (ctypes.c_float * self._info.n_targets)()
        for name, first, end in self._targets:
            if name not in values or len(values[name]) != end - first:
                raise Error("the output %s has %d values" % (name, end - first))
            targets[first:end] = [float(value) for value in values[name]]
        self._call("feed", self._handle, stream, targets)

    def save(self, stream=0):
        """A stream's state as bytes, for restore."""
        block = ctypes.create_string_buffer(self._info.state_bytes)
        self._call("save", self._handle, stream, block, ctypes.c_size_t(len(block)))
        return block.raw

    def restore(self, state, stream=0):
        self._call("restore", self._handle, stream, state, ctypes.c_size_t(len(state)))

    def reset(self, stream=0):
        self._call("reset", self._handle, int(stream))

    def seed(self, seed, stream=0):
        self._call("seed", self._handle, int(stream), ctypes.c_uint64(seed))

    def close(self):
        if self._handle:
            self._library.dtrain_step_close(self._handle)
            self._handle = ctypes.c_void_p()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def measure(path, rounds=500, steps=20):
    """Prints microseconds a step of one stream, each the least of many short rounds: in the C library, and here."""
    with Model(path) as model:
        frame, ids = (ctypes.c_float * model.frame_size)(), [0] * model.n_ids
        if model.vocab_size:
            frame, numbers = 0, 0
        else:
            numbers = list(frame)
        tail = model._frames.address, model._ids.address, 0.0, model._drawn.address, None
        calls = {"sample": lambda: model.sample(frame, ids, temperature=0), "step": lambda: model.step(frame, ids),
                 "of a list": lambda: model.sample(numbers, ids, temperature=0),
                 "C": lambda: model._batch(model._handle, 0, 1, *tail),
                 "call": lambda: model._batch(None, 0, 1, *tail)}  # refused at once: what a call by ctypes costs
        best = dict.fromkeys(calls, float("inf"))
        for _ in range(rounds):
            for name, call in calls.items():
                start = time.perf_counter()
                for _ in range(steps):
                    call()
                best[name] = min(best[name], (time.perf_counter() - start) / steps * 1e6)
        alone = best["C"] - best["call"]
        print("C %.1f us a step; Python: sample %.1f more, of a list %.1f, step %.1f"
              % (alone, best["sample"] - alone, best["of a list"] - alone, best["step"] - alone))


if __name__ == "__main__":
    try:
        if len(sys.argv) not in (2, 3):
            raise Error("usage: dtrain_step.py MODEL [PROMPT]")
        if len(sys.argv) == 2:
            measure(sys.argv[1])
        else:
            with Model(sys.argv[1]) as played:
                for part in played.generate(sys.argv[2]):
                    print(part, end="", flush=True)
            print()
    except Error as why:
        print("dtrain_step.py: %s" % why, file=sys.stderr)
        sys.exit(2)
