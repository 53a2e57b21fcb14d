"""The float64 reference of dtrain's models and training step, with which the golden files of all families are made.

A family of kinds is one file FAMILY.py and one folder FAMILY/ of small golden files; nothing else changes. To add one:
1. Write a class for each block kind. shapes(c) gives the tensors within backbone.layers.I. in any order; states(c) its
   recurrent state, and random_state(c, generator) a state if that must not be normal numbers; forward(c, w, x, reset,
   state) -> (y, state) is plain sequential code from the normalised input. mlp.py is the smallest. A family of stems and
   heads passes a class like Language as the argument `ends` instead.
2. Write CASES: name -> keys of [model] (`layers = "gru*2"`), and of DEFAULTS where a case differs.
3. FAMILY.py writes FAMILY/NAME.safetensors; commit both. CMake makes them the test golden_FAMILY.

The metadata model.KEY of a golden file give the model, B, T, the steps and the optimizer. Its tensors (all F32) are the first
weights by name, batch.ARRAY [steps or batches, B, T, width] for every array that the model reads, before.LAYER.STATE [B, …] if a
state is carried in, and the results: after.LAYER.STATE of the first step (not of segments), golden.loss and golden.grad_norm [steps],
golden.grad.NAME of the first step, golden.final_norm.NAME, and golden.logits [B, T, V] of a language model.
golden.c and test_golden.c read them; the test also runs every file in windows of one position.
"""
import fnmatch
import json
import math
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import save

STEPS = 10
IGNORED = -100

# What cases have by default. The optimizer is that of Mamba's recipe, with a learning rate that changes the loss of these
# tiny models by several percent in ten steps. ignored: some labels are ignored; reset: documents start within windows;
# state: a state is carried in.
DEFAULTS = dict(d_model=20, vocab_size=19, norm_eps=1e-5, tie_embeddings=True)
RUN = dict(B=1, T=77, steps=STEPS, reset=False, state=False, ignored=False, lr=4e-3, beta1=0.9, beta2=0.95, eps=1e-8,
           weight_decay=0.1, grad_clip=1.0)
# Written only if a case has them: the momentum of Muon; factors of the rate, from pattern to factor, in order; the number
# of batches, which the steps use in turn; lengths of segments.
CHOSEN = ("momentum", "lr_groups", "batches", "segments")
NEVER_DECAYED = ("A_log",)  # although it may have two dimensions
MUON = (3.4445, -4.7750, 2.0315)


def rmsnorm(x, weight, eps):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def layer_kinds(layers):
    """"gru*2 mamba" -> ["gru", "gru", "mamba"]"""
    for word in layers.split():
        kind, _, times = word.partition("*")
        yield from [kind] * int(times or 1)


def fresh(state, reset, t):
    """Returns the state before position t: zeros where a document starts there."""
    return state if reset is None else state * (1 - reset[:, t].view(-1, *[1] * (state.dim() - 1)))


class Language:
    """The stem `tokens` and the head `lm`."""

    @staticmethod
    def stem_shapes(c):
        yield "backbone.embeddings.weight", (c["vocab_size"], c["d_model"])

    @staticmethod
    def head_shapes(c):
        yield "backbone.norm_f.weight", (c["d_model"],)
        if not c["tie_embeddings"]:
            yield "lm_head.weight", (c["vocab_size"], c["d_model"])

    @staticmethod
    def stem(c, w, batch):
        return w["backbone.embeddings.weight"][batch["input_ids"]]

    @staticmethod
    def head(c, w, residual, batch):
        """Returns the mean loss over the positions that count, and the logits."""
        x = rmsnorm(residual, w["backbone.norm_f.weight"], c["norm_eps"])
        logits = x @ w["backbone.embeddings.weight" if c["tie_embeddings"] else "lm_head.weight"].T
        return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=IGNORED), logits

    @staticmethod
    def batches(c, generator):
        """Makes input_ids and labels [steps, B, T]: a noisy linear sequence, which can be learned."""
        shape = (c["steps"], c["B"], c["T"] + 1)
        tokens = torch.zeros(shape, dtype=torch.int64)
        noise = torch.randint(0, 3, shape, generator=generator)
        tokens[..., 0] = torch.randint(0, c["vocab_size"], shape[:2], generator=generator)
        for t in range(1, shape[2]):
            tokens[..., t] = (3 * tokens[..., t - 1] + 1 + noise[..., t]) % c["vocab_size"]
        ids, labels = tokens[..., :-1].clone(), tokens[..., 1:].clone()
        if c["ignored"]:
            labels[torch.rand(labels.shape, generator=generator) < 0.3] = IGNORED
            labels[::3, c["B"] - 1] = IGNORED  # a sequence in which no position counts
        return {"input_ids": ids, "labels": labels}


class Model:
    """The weights by Hugging Face name, and the forward pass."""

    def __init__(self, case, blocks, generator, ends=Language):
        self.c = RUN | DEFAULTS | case
        self.keys = [key for key in DEFAULTS | case if key not in RUN and key not in CHOSEN]
        self.blocks, self.ends = [blocks[kind] for kind in layer_kinds(self.c["layers"])], ends
        self.w = {name: self.initial(name, shape, generator) for name, shape in self.shapes()}

    def shapes(self):
        yield from self.ends.stem_shapes(self.c)
        for i, block in enumerate(self.blocks):
            yield f"backbone.layers.{i}.norm.weight", (self.c["d_model"],)
            for name, shape in block.shapes(self.c):
                yield f"backbone.layers.{i}.{name}", shape
        yield from self.ends.head_shapes(self.c)

    @staticmethod
    def initial(name, shape, generator):
        """Makes all weights random, so that no term of a formula is multiplied by 0 or 1; time steps are from 0.02 to 1."""
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        if name.endswith("norm.weight") or name.endswith("norm_f.weight") or name.endswith(".D"):
            x = 1 + 0.2 * x
        elif name.endswith("A_log"):
            x = torch.log(torch.arange(1, shape[-1] + 1, dtype=torch.float64)) * 0.7 + 0.2 * x
        elif name == "heads.deviation":
            x = 0.5 + x.abs()
        elif name.endswith("dt_proj.bias") or name.endswith("dt_bias"):
            x = x - 2
        elif name.endswith("embeddings.weight") or name.endswith("lm_head.weight"):
            x = 0.4 * x
        else:
            x = x * 0.8 / math.sqrt(shape[-1])
        return x.float().double().requires_grad_()

    def forward(self, batch, state=None):
        """Returns (mean loss, logits or None, states after) of a batch; `state` is a list of the states of each layer, or None."""
        residual, reset, after = self.ends.stem(self.c, self.w, batch), batch.get("reset"), []
        for i, block in enumerate(self.blocks):
            layer = f"backbone.layers.{i}."
            w = {name[len(layer):]: value for name, value in self.w.items() if name.startswith(layer)}
            x = rmsnorm(residual, w["norm.weight"], self.c["norm_eps"])
            y, last = block.forward(self.c, w, x, reset, state[i] if state else self.zero_state(block))
            residual = residual + y
            after.append(last)
        return *self.ends.head(self.c, self.w, residual, batch), after

    def zero_state(self, block):
        return [torch.zeros((self.c["B"], *shape), dtype=torch.float64) for _, shape in block.states(self.c)]

    def random_state(self, generator):
        """Makes the initial states, which are the same at every step."""
        if not self.c["state"]:
            return None
        return [block.random_state(self.c, generator) if hasattr(block, "random_state") else
                [(0.5 * torch.randn((self.c["B"], *shape), generator=generator)).double()
                 for _, shape in block.states(self.c)] for block in self.blocks]

    def state_tensors(self, name, state):
        return {f"{name}.{i}.{key}": value.detach().clone() for i, block in enumerate(self.blocks)
                for (key, _), value in zip(block.states(self.c), state[i])}


def is_hidden(name, w):
    """Returns whether a tensor is the matrix of a linear layer of a block."""
    return name.startswith("backbone.layers.") and w.dim() == 2 and not name.endswith(NEVER_DECAYED)


def width_factors(model):
    """Returns muP's factor [Yang et al. 2022, table 8] from the fan-in and that of mup_base; the output's multiplier is in the last norm."""
    c = model.c
    if not c.get("mup_base"):
        return dict.fromkeys(model.w, 1.0)
    narrow = Model.__new__(Model)
    narrow.c, narrow.blocks, narrow.ends = c | {"d_model": c["mup_base"]}, model.blocks, model.ends
    base = dict(narrow.shapes())
    factors = {name: w.shape[1] / base[name][1] if is_hidden(name, w) else 1.0 for name, w in model.w.items()}
    return factors | {"backbone.norm_f.weight": c["d_model"] / c["mup_base"]}


def orthogonal(u):
    """Runs five Newton-Schulz iterations [Keller Jordan et al. 2024] in float64."""
    x = u / max(u.norm().item(), 1e-7)
    x = x if u.shape[0] <= u.shape[1] else x.T
    for _ in range(5):
        gram = x @ x.T
        x = MUON[0] * x + (MUON[1] * gram + MUON[2] * gram @ gram) @ x
    return x if u.shape[0] <= u.shape[1] else x.T


class AdamW:
    """AdamW with decoupled decay on tensors of two or more dimensions except A_log, and gradients clipped by their global
    norm. With `momentum`, hidden matrices use Muon: Nesterov momentum, updates of AdamW's size [Liu et al. 2025]."""

    def __init__(self, model):
        self.model, self.updates = model, 0
        self.width = width_factors(model)
        self.group = dict.fromkeys(model.w, 1.0)
        for pattern, factor in model.c.get("lr_groups", {}).items():
            self.group |= {name: factor for name in model.w if fnmatch.fnmatchcase(name, pattern)}
        self.m = {name: torch.zeros_like(w) for name, w in model.w.items()}
        self.v = {name: torch.zeros_like(w) for name, w in model.w.items()}

    @torch.no_grad()
    def step(self, lr):
        c = self.model.c
        grads = {name: w.grad for name, w in self.model.w.items()}
        norm = math.sqrt(sum((g * g).sum().item() for g in grads.values()))
        clip = min(1.0, c["grad_clip"] / (norm + 1e-6)) if c["grad_clip"] > 0 else 1.0
        self.updates += 1
        bias1, bias2 = 1 - c["beta1"] ** self.updates, 1 - c["beta2"] ** self.updates
        for name, w in self.model.w.items():
            g, width = grads[name] * clip, self.width[name]
            w.grad = None
            if w.dim() >= 2 and not name.endswith(NEVER_DECAYED):
                w.mul_(1 - lr * self.group[name] * c["weight_decay"])
            if c.get("momentum") and is_hidden(name, w):
                mu = c["momentum"]
                self.m[name].mul_(mu).add_((1 - mu) * g)
                x = orthogonal(mu * self.m[name] + (1 - mu) * g)
                w.sub_(lr * self.group[name] / math.sqrt(width) * 0.2 * math.sqrt(max(w.shape)) * x)
                continue
            self.m[name].mul_(c["beta1"]).add_((1 - c["beta1"]) * g)
            self.v[name].mul_(c["beta2"]).add_((1 - c["beta2"]) * g * g)
            rate = lr * self.group[name] / width
            w.sub_(rate * (self.m[name] / bias1) / ((self.v[name] / bias2).sqrt() + c["eps"]))
        return norm


def resets(c, generator):
    """Returns where documents start [steps, B, T]: at random, and at awkward positions: at 0, twice in a row, closer than the
    taps, at the end, and at borders of segments."""
    reset = (torch.rand((c["steps"], c["B"], c["T"]), generator=generator) < min(0.05, 4 / c["T"])).double()
    reset[:, 0, 0] = 1
    reset[:, 0, -1] = 1
    if c["T"] > 40:
        reset[:, -1, [5, 6, 8, 32]] = 1
    if "segments" in c:
        reset[:, -1, [511, 640, 1536]] = 1
    return reset


def learning_rates(c):
    """Returns the rate of each step: a warm-up of three steps, then a slow fall; or a constant."""
    return [c["lr"]] * c["steps"] if c.get("constant") else [round(c["lr"] * min(t / 3, 1.0) * (1 - 0.03 * t), 8) for t in range(1, c["steps"] + 1)]


def train(model, batches, state, rates):
    """Runs the steps; returns what the golden file has besides the inputs."""
    optimizer, losses, norms, out = AdamW(model), [], [], {}
    for k, rate in enumerate(rates):
        loss, logits, after = model.forward({name: array[k % len(array)] for name, array in batches.items()}, state)
        loss.backward()
        if k == 0:
            if "segments" not in model.c:
                if logits is not None:
                    out["golden.logits"] = logits.detach()
                out |= model.state_tensors("after", after)
            out |= {f"golden.grad.{name}": w.grad.clone() for name, w in model.w.items()}
        losses.append(loss.item())
        norms.append(optimizer.step(rate))
    out |= {f"golden.final_norm.{name}": w.detach().norm().view(1) for name, w in model.w.items()}
    out["golden.loss"] = torch.tensor(losses, dtype=torch.float64)
    out["golden.grad_norm"] = torch.tensor(norms, dtype=torch.float64)
    return out


def write(path, tensors, metadata):
    """Writes tensors as F32. The library writes metadata in random order; they are sorted here, so that equal values give equal files."""
    data = save({key: t.float().contiguous() for key, t in tensors.items()}, metadata)
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8:end]), sort_keys=True, separators=(",", ":")).encode()
    path.write_bytes(data[:8] + header.ljust(end - 8) + data[end:])


def text(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


def make(path, model, generator):
    """Writes the golden file of a model that `generator` has just made."""
    c = model.c
    inputs = c | {"steps": c.get("batches", c["steps"])}
    batches = model.ends.batches(inputs, generator)
    if c["reset"]:
        batches["reset"] = resets(inputs, generator)
    state, rates = model.random_state(generator), learning_rates(c)
    tensors = {key: w.detach().clone() for key, w in model.w.items()}
    tensors |= {f"batch.{name}": array for name, array in batches.items()}
    if state:
        tensors |= model.state_tensors("before", state)
    tensors |= train(model, batches, state, rates)
    metadata = {f"model.{key}": text(c[key]) for key in model.keys}
    metadata |= {key: text(c[key]) for key in ("momentum", "batches", "segments") if key in c}
    if "lr_groups" in c:
        metadata["lr_groups"] = " ".join(f"{pattern}:{factor}x" for pattern, factor in c["lr_groups"].items())
    metadata |= {key: text(c[key]) for key in RUN} | {"lr": " ".join(repr(r) for r in rates)}
    path.parent.mkdir(exist_ok=True)
    write(path, tensors, metadata)
    print(f"{path.stem}: loss {tensors['golden.loss'][0]:.6f} -> {tensors['golden.loss'][-1]:.6f}, "
          f"norm {tensors['golden.grad_norm'][0]:.4f}, {path.stat().st_size} bytes")


def make_family(script, cases, blocks, ends=Language):
    """Writes FAMILY/NAME.safetensors beside the script FAMILY.py; the seeds are fixed, so the files are always the same."""
    torch.set_num_threads(1)
    for seed, (name, case) in enumerate(cases.items(), 1):
        generator = torch.Generator().manual_seed(seed)
        make(pathlib.Path(script).resolve().with_suffix("") / f"{name}.safetensors",
             Model(case, blocks, generator, ends), generator)
