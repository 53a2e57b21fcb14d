#!/usr/bin/env python3
"""Float64 reference of dtrain's model and training step, and the golden files made from it.

Mamba-1 [Gu & Dao 2023, Algorithm 2 and Figure 3] as plain sequential code, ten AdamW steps, autograd in
float64. Each case becomes one small file NAME.safetensors (all tensors F32; ids, labels and resets are small
whole numbers): the weights to start from under their Hugging Face names, the batches, and what must come out.
golden.c beside this file reads them.

    make_golden.py            rewrites all files (same seeds, same files)
    make_golden.py --check    compares this reference with transformers' MambaForCausalLM
"""
import argparse
import json
import math
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import save

HERE = pathlib.Path(__file__).resolve().parent
STEPS = 10
IGNORED = -100

# What a case does not say. expand 2 and dt_rank ceil(d / 16) as published; optimizer as in the paper's recipe,
# with a learning rate that moves these tiny models by several percent of their loss in ten steps.
DEFAULTS = dict(d_model=20, n_layer=2, vocab_size=19, d_state=16, d_conv=4, expand=2, dt_rank=0, norm_eps=1e-5,
                tie=True, B=1, T=77, reset=False, state=False, ignored=False, lr=4e-3, beta1=0.9, beta2=0.95,
                eps=1e-8, weight_decay=0.1, grad_clip=1.0)

CASES = {
    "length1": dict(T=1, B=1),
    "length1_state": dict(T=1, B=3, d_model=36, expand=1, d_state=8, d_conv=3, state=True, tie=False, vocab_size=13),
    "length2_reset": dict(T=2, B=3, d_state=8, expand=3, n_layer=1, reset=True, state=True),  # L < K - 1
    "plain": dict(),
    "batch": dict(B=3, d_model=36, expand=1, d_state=1, d_conv=2, tie=False, vocab_size=29, ignored=True, dt_rank=5),
    "reset": dict(B=3, n_layer=3, d_conv=3, reset=True, ignored=True, weight_decay=0.0),
    "state": dict(d_state=8, d_conv=2, state=True, tie=False, grad_clip=0.0),
    "reset_state": dict(B=3, d_model=36, expand=1, reset=True, state=True, dt_rank=7, vocab_size=11, eps=1e-6,
                        beta1=0.8, beta2=0.99),
}


class Model:
    """Weights by Hugging Face name and the forward pass."""

    def __init__(self, case, generator):
        self.c = dict(DEFAULTS, **case)
        c = self.c
        c["dt_rank"] = c["dt_rank"] or math.ceil(c["d_model"] / 16)
        self.E = c["expand"] * c["d_model"]
        self.w = {name: self.initial(name, shape, generator) for name, shape in self.shapes()}

    def shapes(self):
        c, E = self.c, self.E
        d, N, K, R = c["d_model"], c["d_state"], c["d_conv"], c["dt_rank"]
        yield "backbone.embeddings.weight", (c["vocab_size"], d)
        for i in range(c["n_layer"]):
            layer = f"backbone.layers.{i}."
            yield layer + "norm.weight", (d,)
            yield layer + "mixer.in_proj.weight", (2 * E, d)
            yield layer + "mixer.conv1d.weight", (E, 1, K)
            yield layer + "mixer.conv1d.bias", (E,)
            yield layer + "mixer.x_proj.weight", (R + 2 * N, E)
            yield layer + "mixer.dt_proj.weight", (E, R)
            yield layer + "mixer.dt_proj.bias", (E,)
            yield layer + "mixer.A_log", (E, N)
            yield layer + "mixer.D", (E,)
            yield layer + "mixer.out_proj.weight", (d, E)
        yield "backbone.norm_f.weight", (d,)
        if not c["tie"]:
            yield "lm_head.weight", (c["vocab_size"], d)

    @staticmethod
    def initial(name, shape, generator):
        """Random everywhere, so that no term of the formula is multiplied by 0 or 1; time steps from 0.02 to 1."""
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        if name.endswith("norm.weight") or name.endswith("norm_f.weight") or name.endswith(".D"):
            x = 1 + 0.2 * x
        elif name.endswith("A_log"):
            x = torch.log(torch.arange(1, shape[1] + 1, dtype=torch.float64)) * 0.7 + 0.2 * x
        elif name.endswith("dt_proj.bias"):
            x = x - 2
        elif name.endswith("embeddings.weight") or name.endswith("lm_head.weight"):
            x = 0.4 * x
        else:
            x = x * 0.8 / math.sqrt(shape[-1])
        return x.float().double().requires_grad_()

    def forward(self, ids, reset=None, state=None):
        """Logits [B, T, V] of ids [B, T]; reset [B, T] or None; state: per layer (h0, x0), or None."""
        residual = self.w["backbone.embeddings.weight"][ids]
        for i in range(self.c["n_layer"]):
            h0, x0 = state[i] if state else (None, None)
            layer = f"backbone.layers.{i}."
            x = self.rmsnorm(residual, self.w[layer + "norm.weight"])
            residual = residual + self.mixer(layer + "mixer.", x, reset, h0, x0)
        x = self.rmsnorm(residual, self.w["backbone.norm_f.weight"])
        head = "backbone.embeddings.weight" if self.c["tie"] else "lm_head.weight"
        return x @ self.w[head].T

    def rmsnorm(self, x, weight):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.c["norm_eps"]) * weight

    def mixer(self, prefix, x, reset, h0, x0):
        w = {name[len(prefix):]: value for name, value in self.w.items() if name.startswith(prefix)}
        N, R = self.c["d_state"], self.c["dt_rank"]
        u, z = (x @ w["in_proj.weight"].T).split(self.E, dim=-1)
        u = F.silu(self.convolution(u, w["conv1d.weight"][:, 0], w["conv1d.bias"], reset, x0))
        dt, b, c = (u @ w["x_proj.weight"].T).split([R, N, N], dim=-1)
        delta = F.softplus(dt @ w["dt_proj.weight"].T + w["dt_proj.bias"])
        s = self.scan(u, delta, -torch.exp(w["A_log"]), b, c, reset, h0) + w["D"] * u
        return (s * F.silu(z)) @ w["out_proj.weight"].T

    def convolution(self, u, weight, bias, reset, x0):
        """Causal, depthwise. The window of the last K - 1 inputs is emptied where a document starts."""
        B, T, E = u.shape
        K = self.c["d_conv"]
        window = u.new_zeros(B, K - 1, E) if x0 is None else x0
        out = []
        for t in range(T):
            if reset is not None:
                window = window * (1 - reset[:, t, None, None])
            taps = torch.cat([window, u[:, t : t + 1]], dim=1)  # [B, K, E]
            out.append((taps * weight.T).sum(1) + bias)
            window = taps[:, 1:]
        return torch.stack(out, dim=1)

    def scan(self, u, delta, a, b, c, reset, h0):
        B, T, E = u.shape
        h = u.new_zeros(B, E, self.c["d_state"]) if h0 is None else h0
        out = []
        for t in range(T):
            if reset is not None:
                h = h * (1 - reset[:, t, None, None])
            step = delta[:, t, :, None]
            h = torch.exp(step * a) * h + step * u[:, t, :, None] * b[:, t, None, :]
            out.append((h * c[:, t, None, :]).sum(-1))
        return torch.stack(out, dim=1)


class AdamW:
    """Decoupled decay on tensors of two or more dimensions except A_log; gradients clipped by their global norm."""

    def __init__(self, model):
        self.model, self.updates = model, 0
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
            g = grads[name] * clip
            self.m[name].mul_(c["beta1"]).add_((1 - c["beta1"]) * g)
            self.v[name].mul_(c["beta2"]).add_((1 - c["beta2"]) * g * g)
            if w.dim() >= 2 and not name.endswith("A_log"):
                w.mul_(1 - lr * c["weight_decay"])
            w.sub_(lr * (self.m[name] / bias1) / ((self.v[name] / bias2).sqrt() + c["eps"]))
            w.grad = None
        return norm


def batches(c, generator):
    """ids and labels [steps, B, T]: a noisy linear sequence, which can be learned."""
    shape = (STEPS, c["B"], c["T"] + 1)
    tokens = torch.zeros(shape, dtype=torch.int64)
    noise = torch.randint(0, 3, shape, generator=generator)
    tokens[..., 0] = torch.randint(0, c["vocab_size"], shape[:2], generator=generator)
    for t in range(1, shape[2]):
        tokens[..., t] = (3 * tokens[..., t - 1] + 1 + noise[..., t]) % c["vocab_size"]
    ids, labels = tokens[..., :-1].clone(), tokens[..., 1:].clone()
    if c["ignored"]:
        labels[torch.rand(labels.shape, generator=generator) < 0.3] = IGNORED
        labels[::3, c["B"] - 1] = IGNORED  # a sequence with nothing to count
    return ids, labels


def resets(c, generator):
    """[steps, B, T]: at random, and where it is awkward: at 0, twice in a row, closer than the taps, at the end."""
    if not c["reset"]:
        return None
    reset = (torch.rand((STEPS, c["B"], c["T"]), generator=generator) < 0.05).double()
    reset[:, 0, 0] = 1
    reset[:, 0, -1] = 1
    if c["T"] > 40:
        reset[:, -1, [5, 6, 8, 32]] = 1
    return reset


def initial_state(model, generator):
    """Per layer (h0 [B, E, N], x0 [B, K-1, E]), the same at every step."""
    c, E = model.c, model.E
    if not c["state"]:
        return None
    shapes = (c["B"], E, c["d_state"]), (c["B"], c["d_conv"] - 1, E)
    return [tuple((0.5 * torch.randn(s, generator=generator)).double() for s in shapes) for _ in range(c["n_layer"])]


def learning_rates(c):
    """A warm-up of three steps, then a slow fall: every step its own."""
    return [round(c["lr"] * min(t / 3, 1.0) * (1 - 0.03 * t), 8) for t in range(1, STEPS + 1)]


def train(model, ids, labels, reset, state, rates):
    """Ten steps; returns what the golden file holds besides the inputs."""
    optimizer, losses, norms, out = AdamW(model), [], [], {}
    for k in range(STEPS):
        logits = model.forward(ids[k], None if reset is None else reset[k], state)
        loss = F.cross_entropy(logits.flatten(0, 1), labels[k].flatten(), ignore_index=IGNORED)
        loss.backward()
        if k == 0:
            out["golden.logits"] = logits.detach().clone()
            out |= {f"golden.grad.{name}": w.grad.clone() for name, w in model.w.items()}
        losses.append(loss.item())
        norms.append(optimizer.step(rates[k]))
    out["golden.loss"], out["golden.grad_norm"] = torch.tensor(losses), torch.tensor(norms)
    for name, w in model.w.items():  # what the updates left, one number a tensor
        out[f"golden.final_norm.{name}"] = w.detach().norm().reshape(1)
    return out


def write(path, tensors, metadata):
    """As F32. The library writes metadata in random order: sorted here, so that the same values are the same file."""
    data = save({key: t.float().contiguous() for key, t in tensors.items()}, metadata)
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8:end]), sort_keys=True, separators=(",", ":")).encode()
    path.write_bytes(data[:8] + header.ljust(end - 8) + data[end:])


def make(name, seed):
    generator = torch.Generator().manual_seed(seed)
    model = Model(CASES[name], generator)
    c = model.c
    ids, labels = batches(c, generator)
    reset, state, rates = resets(c, generator), initial_state(model, generator), learning_rates(c)
    tensors = {key: w.detach().clone() for key, w in model.w.items()}
    tensors |= {"golden.ids": ids, "golden.labels": labels}
    if reset is not None:
        tensors["golden.reset"] = reset
    for i, (h0, x0) in enumerate(state or []):
        tensors |= {f"golden.h0.{i}": h0, f"golden.x0.{i}": x0}
    tensors |= train(model, ids, labels, reset, state, rates)
    hyper = {key: str(int(v) if isinstance(v, bool) else v) for key, v in c.items()}
    hyper |= {"steps": str(STEPS), "lr": " ".join(repr(r) for r in rates)}
    write(HERE / f"{name}.safetensors", tensors, hyper)
    print(f"{name}: loss {tensors['golden.loss'][0]:.6f} -> {tensors['golden.loss'][-1]:.6f}, "
          f"norm {tensors['golden.grad_norm'][0]:.4f}")


def huggingface(c, E):
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(vocab_size=c["vocab_size"], hidden_size=c["d_model"], state_size=c["d_state"],
                         num_hidden_layers=c["n_layer"], conv_kernel=c["d_conv"], expand=c["expand"],
                         intermediate_size=E, time_step_rank=c["dt_rank"], layer_norm_epsilon=c["norm_eps"],
                         use_bias=False, use_conv_bias=True, tie_word_embeddings=c["tie"], use_cache=False,
                         residual_in_fp32=True, pad_token_id=0, bos_token_id=0, eos_token_id=0)
    return MambaForCausalLM(config).double()


def check():
    """Logits and gradients against transformers' own code. It rounds to fp32 within its norms: hence 1e-5."""
    worst = 0.0
    for name, case in CASES.items():
        if case.get("reset") or case.get("state"):
            continue
        generator = torch.Generator().manual_seed(7)
        model = Model(case, generator)
        ids, labels = batches(model.c, generator)
        peer = huggingface(model.c, model.E)
        peer.load_state_dict({key: w.detach() for key, w in model.w.items()}, strict=False)
        peer.tie_weights()
        mine, theirs = model.forward(ids[0]), peer(ids[0]).logits
        for logits in (mine, theirs):
            F.cross_entropy(logits.flatten(0, 1), labels[0].flatten(), ignore_index=IGNORED).backward()
        pairs = {"logits": (mine.detach(), theirs.detach())}
        pairs |= {key: (model.w[key].grad, p.grad) for key, p in peer.named_parameters()}
        assert len(pairs) == len(model.w) + 1, "not every tensor was compared"
        for key, (x, y) in pairs.items():
            error = ((x - y).norm() / y.norm().clamp_min(1e-12)).item()
            worst = max(worst, error)
            if error > 1e-5:
                raise SystemExit(f"{name}: {key} differs from transformers by {error:.2e}")
        print(f"{name}: {len(pairs)} tensors agree")
    print(json.dumps({"worst_relative_error": worst}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with transformers, write nothing")
    if parser.parse_args().check:
        check()
    else:
        torch.set_num_threads(1)
        for seed, name in enumerate(CASES, 1):
            make(name, seed)


if __name__ == "__main__":
    main()
