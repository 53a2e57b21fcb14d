#!/usr/bin/env python3
"""interop.py DTRAIN LOGITS_TOOL: in the working directory, for each small random model

1. transformers writes it (save_pretrained), dtrain reads it: the same logits;
2. dtrain trains it for three steps (run.init_from): another model, whose checkpoint transformers loads
   (from_pretrained) with nothing missing or left over: the same logits again.
"""
import os
import pathlib
import shutil
import subprocess
import sys

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from safetensors.torch import load_file, save_file
from transformers import Mamba2Config, Mamba2ForCausalLM, MambaConfig, MambaForCausalLM

# Both sides compute in fp32 with sums in another order: 1e-4 of logits of size one, as promised.
TOLERANCE = 1e-4
STEPS, LR = 3, 0.01

MODELS = {
    "tied": dict(vocab_size=51, hidden_size=32, num_hidden_layers=2, tie_word_embeddings=True),
    "untied": dict(vocab_size=64, hidden_size=36, num_hidden_layers=1, tie_word_embeddings=False, state_size=5,
                   conv_kernel=3, expand=1, time_step_rank=7, layer_norm_epsilon=1e-3),
    "sharded": dict(vocab_size=99, hidden_size=48, num_hidden_layers=3, tie_word_embeddings=True, conv_kernel=2),
    "bf16": dict(vocab_size=40, hidden_size=32, num_hidden_layers=2, tie_word_embeddings=True),
    # As state-spaces publish theirs (one group, tied), and mistralai (several groups, untied).
    "mamba2": dict(vocab_size=51, hidden_size=32, num_hidden_layers=2, tie_word_embeddings=True, num_heads=8,
                   head_dim=8, n_groups=1, state_size=16),
    "mamba2_groups": dict(vocab_size=64, hidden_size=24, num_hidden_layers=2, tie_word_embeddings=False, num_heads=12,
                          head_dim=6, expand=3, n_groups=4, conv_kernel=3, chunk_size=8, layer_norm_epsilon=1e-3),
    "mamba2_limits": dict(vocab_size=40, hidden_size=32, num_hidden_layers=1, tie_word_embeddings=True, num_heads=16,
                          head_dim=4, n_groups=1, state_size=5, time_step_limit=(0.01, 0.5)),
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
    """A random model with every tensor away from its initial value, so that a forgotten one would be seen."""
    torch.manual_seed(sum(map(ord, name)))
    settings = dict(overrides, use_bias=False, use_cache=False, pad_token_id=0, bos_token_id=0, eos_token_id=0)
    if name.startswith("mamba2"):
        model = Mamba2ForCausalLM(Mamba2Config(**settings)).float()
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
    model, info = kind.from_pretrained(directory, output_loading_info=True)
    assert model.config.architectures == [kind.__name__], model.config.architectures
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        assert not info.get(problem), f"{directory}: {problem}: {info[problem]}"
    return model.float()


def check_moved(name, model, trained):
    """Every tensor was trained, from where transformers left it: AdamW moves a weight by about lr a step at most."""
    before, after = model.state_dict(), trained.state_dict()
    for key, value in before.items():
        moved = (after[key] - value).abs().max().item()
        assert 0 < moved <= 2 * STEPS * LR, f"{name}: {key} moved by {moved:.3g} in {STEPS} steps of {LR}"


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


def main():
    dtrain, tool = sys.argv[1:]
    torch.set_num_threads(1)
    for name in MODELS:
        check_model(name, dtrain, tool)
    files = list(pathlib.Path("sharded").glob("*.safetensors"))
    assert len(files) > 1, "the sharded model is in one file: nothing was tested of shards"


if __name__ == "__main__":
    main()
