#!/usr/bin/env python3
"""interop.py DTRAIN LOGITS_TOOL: in the working directory, for each small random model

1. transformers writes it (save_pretrained) and dtrain reads it: the logits are the same.
2. dtrain trains it for three steps (run.init_from). transformers loads the checkpoint (AutoModelForCausalLM) with nothing
   missing or left over: the logits are the same, and so are the 200 most likely next tokens.
3. transformers trains it for a step and saves it: dtrain's first loss is that of transformers.
4. dtrain exports the checkpoint in bf16: the logits are those of the rounded weights.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
import h5py
import torch
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForCausalLM, FalconMambaConfig, FalconMambaForCausalLM, Mamba2Config,
                          Mamba2ForCausalLM, MambaConfig, MambaForCausalLM)

try:
    from transformers import NemotronHConfig, NemotronHForCausalLM
except ImportError:  # transformers is older than 5.3
    NemotronHConfig = None

# Both compute in fp32, with sums in another order: 1e-4 for logits of about 1, as dtrain promises.
TOLERANCE = 1e-4
STEPS, LR, TOKENS = 3, 0.01, 200

MODELS = {
    "tied": dict(vocab_size=51, hidden_size=32, num_hidden_layers=2, tie_word_embeddings=True),
    "untied": dict(vocab_size=64, hidden_size=36, num_hidden_layers=1, tie_word_embeddings=False, state_size=5,
                   conv_kernel=3, expand=1, time_step_rank=7, layer_norm_epsilon=1e-3),
    "sharded": dict(vocab_size=99, hidden_size=48, num_hidden_layers=3, tie_word_embeddings=True, conv_kernel=2),
    "bf16": dict(vocab_size=40, hidden_size=32, num_hidden_layers=2, tie_word_embeddings=True),
    # `expand` as in tiiuae/falcon-mamba-7b, where intermediate_size overrides it.
    "falcon_mamba": dict(vocab_size=51, hidden_size=32, num_hidden_layers=2, tie_word_embeddings=False, expand=16,
                         intermediate_size=64, time_step_rank=6, mixer_rms_eps=1e-3),
    # As published by state-spaces (one group, tied) and by mistralai (several groups, untied).
    "mamba2": dict(vocab_size=51, hidden_size=32, num_hidden_layers=2, tie_word_embeddings=True, num_heads=8,
                   head_dim=8, n_groups=1, state_size=16),
    "mamba2_groups": dict(vocab_size=64, hidden_size=24, num_hidden_layers=2, tie_word_embeddings=False, num_heads=12,
                          head_dim=6, expand=3, n_groups=4, conv_kernel=3, chunk_size=8, layer_norm_epsilon=1e-3),
    "mamba2_limits": dict(vocab_size=40, hidden_size=32, num_hidden_layers=1, tie_word_embeddings=True, num_heads=16,
                          head_dim=4, n_groups=1, state_size=5, time_step_limit=(0.01, 0.5)),
    "nemotron_h": dict(vocab_size=51, hidden_size=32, hybrid_override_pattern="M*-MM-*", mamba_num_heads=8,
                       mamba_head_dim=8, n_groups=2, ssm_state_size=16, num_attention_heads=4, num_key_value_heads=2,
                       head_dim=8, intermediate_size=40),
    "nemotron_h_silu": dict(vocab_size=64, hidden_size=24, hybrid_override_pattern="-M*", mamba_num_heads=12,
                            mamba_head_dim=6, expand=3, n_groups=1, ssm_state_size=5, num_attention_heads=2,
                            num_key_value_heads=2, head_dim=12, intermediate_size=20, mlp_hidden_act="silu",
                            conv_kernel=3, chunk_size=8, time_step_min=0.05, layer_norm_epsilon=1e-3),
}

CONFIG = """
[run]
dir = {dir}
init_from = {model}
precision = fp32
threads = 1
steps = {steps}
[data]
train = synthetic:random
seq_len = 24
batch = 4
[optim]
lr = {lr}
"""


def make_model(name, overrides):
    """Returns a random model in which every tensor differs from its initial value, so that a forgotten one shows."""
    torch.manual_seed(sum(map(ord, name)))
    settings = dict(overrides, use_bias=False, use_cache=False, pad_token_id=0, bos_token_id=0, eos_token_id=0)
    if name.startswith("nemotron_h"):
        model = NemotronHForCausalLM(NemotronHConfig(**settings)).float()
    elif name.startswith("mamba2"):
        model = Mamba2ForCausalLM(Mamba2Config(**settings)).float()
    elif name == "falcon_mamba":
        model = FalconMambaForCausalLM(FalconMambaConfig(**settings)).float()
    else:
        settings["intermediate_size"] = overrides.get("expand", 2) * overrides["hidden_size"]
        model = MambaForCausalLM(MambaConfig(**settings)).float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    if name == "bf16":
        model = model.bfloat16()
    model.save_pretrained(name, max_shard_size="30KB" if name == "sharded" else "1GB")
    return model.float()


def transformers_logits(model, ids):
    with torch.no_grad():
        return model(ids).logits


def dtrain_logits(tool, directory, ids):
    save_file({"ids": ids.float()}, "ids.safetensors")
    subprocess.run([tool, directory, "ids.safetensors", "logits.safetensors"], check=True)
    return load_file("logits.safetensors")["logits"]


def compare(what, got, want):
    assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)}, not {tuple(want.shape)}"
    worst = ((got - want).abs() / want.abs().clamp_min(1)).max().item()
    print(f"{what}: logits differ by at most {worst:.1e}")
    if not worst <= TOLERANCE:
        sys.exit(f"{what}: logits differ by {worst:.3g} (tolerance {TOLERANCE})")


def train(dtrain, name):
    run = pathlib.Path(f"run-{name}")
    shutil.rmtree(run, ignore_errors=True)
    config = pathlib.Path(f"{name}.ini")
    config.write_text(CONFIG.format(dir=run, model=name, steps=STEPS, lr=LR))
    subprocess.run([dtrain, config], check=True)
    return run / "checkpoints" / f"step-{STEPS:08}"


def load_checkpoint(directory, kind):
    model, info = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert type(model) is kind, type(model)
    assert model.config.architectures == [kind.__name__], model.config.architectures
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        assert not info.get(problem), f"{directory}: {problem}: {info[problem]}"
    return model.float()


def check_moved(name, model, trained):
    """Checks that every tensor was trained from the value that transformers wrote: AdamW moves a weight by at most about lr per step."""
    before, after = model.state_dict(), trained.state_dict()
    for key, value in before.items():
        moved = (after[key] - value).abs().max().item()
        assert 0 < moved <= 2 * STEPS * LR, f"{name}: {key} moved by {moved:.3g} in {STEPS} steps of {LR}"


def check_returned(name, dtrain, checkpoint, model):
    """Checks that dtrain has the loss of transformers after transformers has trained a step of SGD."""
    ids = torch.randint(0, model.config.vocab_size, (1, 24 * 4 + 1))
    with h5py.File("tokens.h5", "w") as file:
        file["tokens"] = ids[0].numpy().astype("uint16")
    loss = model(ids[:, :24], labels=ids[:, :24]).loss
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
    shutil.rmtree("returned", ignore_errors=True)
    model.save_pretrained("returned")
    windows = ids[:, :-1].view(4, 24)
    theirs = torch.nn.functional.cross_entropy(transformers_logits(model, windows).flatten(0, 1), ids[0, 1:]).item()
    config = pathlib.Path("returned.ini")
    shutil.rmtree("run-returned", ignore_errors=True)
    config.write_text(CONFIG.format(dir="run-returned", model="returned", steps=1, lr=LR).replace(
        "synthetic:random", "tokens.h5"))
    subprocess.run([dtrain, config], check=True)
    ours = json.loads(pathlib.Path("run-returned/metrics.jsonl").read_text().splitlines()[0])["loss"]
    assert abs(ours - theirs) <= 1e-5 * theirs, f"{name}: loss {ours}, there {theirs}"
    print(f"{name}: the first loss after coming back is {ours:.6f}, there {theirs:.6f}")


def check_tokens(name, dtrain, checkpoint, model):
    """Checks that both give the same TOKENS most likely tokens. Random models have very close logits: where the tokens
    first differ, both must be equally likely within TOLERANCE."""
    prompt = [3, 1, 4, 1, 5]
    out = subprocess.run([dtrain, "sample", checkpoint, "--temperature", "0", "--tokens", str(TOKENS), "--prompt",
                          " ".join(map(str, prompt))], check=True, capture_output=True, text=True).stdout
    ours = torch.tensor([[int(word) for word in out.split()]])
    theirs = model.generate(torch.tensor([prompt]), max_new_tokens=TOKENS, do_sample=False, use_cache=True,
                            eos_token_id=-1)
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    parted = (ours != theirs).nonzero()
    if len(parted):
        at = parted[0, 1].item()
        logits = transformers_logits(model, ours[:, :at])[0, -1]
        gap = (logits[ours[0, at]] - logits[theirs[0, at]]).abs().item()
        assert gap <= TOLERANCE, f"{name}: token {at} is {ours[0, at]}, not {theirs[0, at]}, and {gap:.1e} less likely"
    print(f"{name}: {TOKENS} tokens, {'the same but for ties' if len(parted) else 'all the same'}")


def check_model(name, dtrain, tool):
    shutil.rmtree(name, ignore_errors=True)
    model = make_model(name, MODELS[name])
    ids = torch.randint(0, model.config.vocab_size, (3, 37))
    compare(f"{name}, written by transformers", dtrain_logits(tool, name, ids),
            transformers_logits(model, ids))
    checkpoint = train(dtrain, name)
    trained = load_checkpoint(checkpoint, type(model))
    check_moved(name, model, trained)
    compare(f"{name}, written by dtrain", dtrain_logits(tool, checkpoint, ids), transformers_logits(trained, ids))
    check_tokens(name, dtrain, checkpoint, trained)
    check_returned(name, dtrain, checkpoint, trained)
    shutil.rmtree("half", ignore_errors=True)
    subprocess.run([dtrain, "export", checkpoint, "half", "--bf16"], check=True)
    half = AutoModelForCausalLM.from_pretrained("half")
    assert half.dtype is torch.bfloat16, half.dtype
    compare(f"{name}, exported in bf16", dtrain_logits(tool, "half", ids), transformers_logits(half.float(), ids))


def main():
    dtrain, tool = sys.argv[1:3]
    torch.set_num_threads(1)
    for name in sys.argv[3:] or MODELS if NemotronHConfig else [name for name in MODELS if not name.startswith("nemotron_h")]:
        check_model(name, dtrain, tool)
    files = list(pathlib.Path("sharded").glob("*.safetensors"))
    assert len(files) > 1, "the sharded model is in one file: nothing was tested of shards"


if __name__ == "__main__":
    main()
