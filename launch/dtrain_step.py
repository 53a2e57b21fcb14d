"""Plays a model that dtrain trained, from Python: a thin layer over libdtrain_step (ctypes, no other package).

    import dtrain_step
    with dtrain_step.Model("runs/policy/checkpoints/step-00001000") as model:
        print(model.frame_size, model.outputs)
        for frame in frames:                       # a list or array of frame_size floats
            values = model.sample(frame, temperature=0)["buttons"]

The library is found as DTRAIN_STEP_LIBRARY, or by the system's loader as libdtrain_step.so.1.
"""
import ctypes
import os

_KINDS = ("categorical", "bernoulli", "regression")
_WEIGHTS = {"as stored": 0, "fp32": 1, "bf16": 2, "int8": 3}


class Options(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32) for name in ("streams", "threads", "weights", "ema")]


class Info(ctypes.Structure):
    _fields_ = (
        [(name, ctypes.c_int32) for name in ("streams", "threads", "weights", "n_ids")]
        + [(name, ctypes.c_int64) for name in ("frame_size", "vocab_size", "parameters", "state_bytes")]
        + [(name, ctypes.c_int32) for name in ("n_outputs", "n_values", "n_targets")])


class Output(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char * 32)] + [
        (name, ctypes.c_int32) for name in ("kind", "first", "width", "target", "target_width")]


class Error(Exception):
    """A wrong argument, input or file, or no memory: the message says which."""


class NotFinite(Error):
    """An output of a step is infinite or no number. The stream is as before the step."""


_NOT_FINITE = 4


class Model:
    """A model in play. Streams are numbered from 0, each with a state of its own."""

    def __init__(self, path, streams=1, threads=1, weights="as stored", ema=False):
        library = os.environ.get("DTRAIN_STEP_LIBRARY", "libdtrain_step.so.1")
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise Error("cannot load %s: set DTRAIN_STEP_LIBRARY to its path, such as "
                        "build/src/step/libdtrain_step.so.1" % library) from error
        self._library.dtrain_step_close.restype = None
        self._library.dtrain_step_error.restype = None
        self._handle = ctypes.c_void_p()
        if weights not in _WEIGHTS:
            raise Error("weights is %r; it must be one of %s" % (weights, ", ".join(map(repr, _WEIGHTS))))
        options = Options(streams, threads, _WEIGHTS[weights], int(ema))
        self._call("open", os.fsencode(path), ctypes.byref(options), ctypes.byref(self._handle))
        self._info = Info()
        self._call("describe", self._handle, ctypes.byref(self._info))
        self.frame_size, self.vocab_size = self._info.frame_size, self._info.vocab_size
        self.n_ids, self.parameters = self._info.n_ids, self._info.parameters
        self._outputs = []
        for i in range(self._info.n_outputs):
            output = Output()
            self._call("describe_output", self._handle, i, ctypes.byref(output))
            self._outputs.append(output)
        self.outputs = {o.name.decode(): (_KINDS[o.kind], o.width) for o in self._outputs}

    def _call(self, name, *arguments):
        code = getattr(self._library, "dtrain_step_" + name)(*arguments)
        if code != 0:
            why = ctypes.create_string_buffer(2048)
            self._library.dtrain_step_error(why, ctypes.c_size_t(len(why)))
            kind = NotFinite if code == _NOT_FINITE else Error
            raise kind(why.value.decode(errors="replace").rstrip())

    def _inputs(self, frame, ids):
        if self.vocab_size:  # a token
            frame, ids = None, [frame]
        elif len(frame) != self.frame_size:
            raise Error("a frame of %d numbers, the model reads %d" % (len(frame), self.frame_size))
        elif len(ids) != self.n_ids:
            raise Error("%d ids, the model reads %d" % (len(ids), self.n_ids))
        return (frame if frame is None else (ctypes.c_float * len(frame))(*frame),
                (ctypes.c_int32 * len(ids))(*ids) if len(ids) else None)

    def step(self, frame, ids=(), stream=0):
        """Advances a stream by a frame (or a token): {output: logits, or values of a regression}."""
        values = (ctypes.c_float * self._info.n_values)()
        self._call("step", self._handle, stream, *self._inputs(frame, ids), values)
        return {o.name.decode(): values[o.first:o.first + o.width] for o in self._outputs}

    def sample(self, frame, ids=(), stream=0, temperature=1.0):
        """The same, and draws from the outputs: {output: values}. temperature 0: the most likely."""
        drawn = (ctypes.c_float * self._info.n_targets)()
        self._call("sample", self._handle, stream, *self._inputs(frame, ids),
                   ctypes.c_double(temperature), drawn, None)
        return {o.name.decode(): drawn[o.target:o.target + o.target_width] for o in self._outputs}

    def save(self, stream=0):
        """A stream's state as bytes, for restore."""
        block = ctypes.create_string_buffer(self._info.state_bytes)
        self._call("save", self._handle, stream, block, ctypes.c_size_t(len(block)))
        return block.raw

    def restore(self, state, stream=0):
        self._call("restore", self._handle, stream, state, ctypes.c_size_t(len(state)))

    def reset(self, stream=0):
        self._call("reset", self._handle, stream)

    def seed(self, seed, stream=0):
        self._call("seed", self._handle, stream, ctypes.c_uint64(seed))

    def close(self):
        if self._handle:
            self._library.dtrain_step_close(self._handle)
            self._handle = ctypes.c_void_p()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
