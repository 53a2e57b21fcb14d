#!/usr/bin/env bash
# both.sh DTRAIN GAME: models that read in both directions have the same losses on any ranks and in any micro-batches,
# and with reproducible sums the same bits, also after a resume on other ranks and with sharded optimizer states. Also
# tests the plan, evaluation, predictions and masked language models, and that messages of refused settings name the
# key.
game=$(realpath "$2")
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
heads='buttons:bernoulli*8 main_x:categorical*17 shoulder:categorical*5/mean'
game_policy "$game" both.ini model.direction=both model.heads="$heads" model.layers='mamba gru mamba2 attention mlp lstm' model.n_layer=6 model.d_state=4
last=checkpoints/step-00000008
for tied in true false; do
    common=(both.ini model.tie_directions=$tied)
    for variant in "1" "1 data.micro_batch=2 model.recompute=block" "2 data.micro_batch=2 model.recompute=scan" "4"; do
        read -ra words <<<"$variant"
        name=$tied-${variant//[^a-z0-9]/-}
        check "$name: trains" ranks "${words[0]}" "${common[@]}" "${words[@]:1}" run.name="$name" >"$name.log" 2>&1
        check "$name: the losses of one rank" same_losses runs/$tied-1/metrics.jsonl "runs/$name/metrics.jsonl" 1e-6
    done
    tree=("${common[@]}" comm.reduce=reproducible data.micro_batch=2)
    check "$tied: reproducible" ranks 1 "${tree[@]}" run.name=tree-$tied-1 >tree.log 2>&1
    check "$tied: … on two ranks, sharded" ranks 2 "${tree[@]}" run.name=tree-$tied-2 optim.shard=true >tree.log 2>&1
    check "$tied: … the same bits" same_bits runs/tree-$tied-1/$last runs/tree-$tied-2/$last
    check "$tied: … half of it" ranks 1 "${tree[@]}" run.name=tree-$tied-4 checkpoint.every=4 >tree.log 2>&1
    rm -r runs/tree-$tied-4/$last
    check "$tied: … the rest on four ranks" ranks 4 "${tree[@]}" run.name=tree-$tied-4 >tree.log 2>&1
    check "$tied: … resumes to the same bits" same_bits runs/tree-$tied-1/$last runs/tree-$tied-4/$last
done
weights() { grep -ao '"backbone.layers.0.mixer[^"]*in_proj.weight"' "runs/$1/$last/model.safetensors" | xargs; }
check "shared projections are stored once" test "$(weights true-1)" = backbone.layers.0.mixer.mamba_fwd.in_proj.weight
check "others twice: $(weights false-1)" test "$(weights false-1 | wc -w)" = 2
loss_of() { grep '"event":"eval"' "$1" | tail -n 1 | grep -o '"loss":[0-9.]*' | head -n 1 | cut -c1-16; }
check "eval" "$dtrain" eval both.ini run.name=true-1 >eval.json 2>eval.log
check "eval has the loss of training" test "$(loss_of eval.json)" = "$(loss_of runs/true-1/metrics.jsonl)"
for n in 1 2; do
    check "predicts on $n ranks" ranks $n predict both.ini run.name=true-1 --output predicted-$n.h5 >predict-$n.log 2>&1
done
check "… the same file" cmp predicted-1.h5 predicted-2.h5
check "… each window by itself" grep -q 'context: each window by itself, read both ways' predict-1.log

ini=both.ini
rejected 'data.carry_state: true, but model.direction = both' data.carry_state=true data.shuffle=false
rejected "model.direction: 'sideways' is not one of the choices \(allowed: forward \| both\)" model.direction=sideways
rejected 'model.direction: forward, but the model in runs/true-1/.* has both' run.init_from=runs/true-1/$last model.direction=forward
rejected 'model.tie_directions: false, but the model in runs/true-1/.* has true' run.init_from=runs/true-1/$last model.tie_directions=false
mkdir lm && cd lm || exit
small_run
sed -i 's/^steps = .*/steps = 8/' small.ini
refused "the next token" 'model.direction is both, but model.heads is lm, which predicts the next token' \
    "$dtrain" small.ini model.direction=both

# Which tokens are masked depends on the window alone: the losses are those of one rank everywhere.
mlm=(small.ini model.heads=mlm model.direction=both model.vocab_size=257 model.mask_token=256 log.eval_every=4)
for variant in "1" "1 data.micro_batch=2" "2" "4 data.micro_batch=1"; do
    read -ra words <<<"$variant"
    name=mlm-${variant//[^a-z0-9]/-}
    check "$name: trains" ranks "${words[0]}" "${mlm[@]}" "${words[@]:1}" run.name="$name" >"$name.log" 2>&1
    check "$name: the losses of one rank" same_losses runs/mlm-1/metrics.jsonl "runs/$name/metrics.jsonl" 1e-6
done
check "mlm: half of it" "$dtrain" "${mlm[@]}" run.name=cut checkpoint.every=4 >cut.log 2>&1
rm -r runs/cut/$last
check "mlm: resumes" "$dtrain" "${mlm[@]}" run.name=cut >cut.log 2>&1
check "mlm: … to the same bits" same_bits runs/cut/$last runs/mlm-1/$last
counted() { sed -n 's/.*"event":"eval".*"tokens":\([0-9]*\).*/\1/p' "$1" | sort -u; }
check "mlm: every evaluation masks the same tokens: $(counted runs/mlm-1/metrics.jsonl)" \
    test "$(counted runs/mlm-1/metrics.jsonl | wc -w)" = 1
check "lm: trains" "$dtrain" small.ini run.name=lm run.steps=1 log.eval_every=1 >lm.log 2>&1
check "mlm: predicts every token" "$dtrain" "${mlm[@]}" model.mask_rate=1 run.name=every >every.log 2>&1
check "mlm: … and counts those that stay, too: $(counted runs/every/metrics.jsonl)" \
    test "$(counted runs/every/metrics.jsonl)" = "$(counted runs/lm/metrics.jsonl)"
check "mlm: predicts" "$dtrain" predict "${mlm[@]}" run.name=mlm-1 --hidden --output predicted.h5 >predict.log 2>&1
check_python "mlm: … a log-probability of every token, its last one too, which follows from the hidden state" -c '
import glob, json, sys
try:
    import h5py, numpy as np
except ImportError:
    sys.exit()
with h5py.File("predicted.h5") as file, h5py.File(glob.glob("data/val-*.h5")[0]) as shard:
    found, hidden, tokens = file["log_probabilities"][:], file["hidden"][:], shard["tokens"][:]
weights = open(sys.argv[1] + "/model.safetensors", "rb").read()
start = 8 + int.from_bytes(weights[:8], "little")
row = json.loads(weights[8:start])["backbone.embeddings.weight"]
embedding = np.frombuffer(weights[slice(*(start + i for i in row["data_offsets"]))], "f4").reshape(row["shape"])
logits = (hidden @ embedding.T).astype("f8")
expected = logits[np.arange(len(tokens)), tokens] - np.log(np.exp(logits).sum(1))
assert len(found) == len(tokens) and (found < 0).all() and abs(found - expected).max() < 1e-5, abs(found - expected).max()' runs/mlm-1/$last
mlm_rejected() { # pattern, override …
    refused "${*:2}" "$1" "$dtrain" small.ini model.heads=mlm model.vocab_size=257 "${@:2}"
}
mlm_rejected 'model.heads is mlm, whose masked tokens follow from both sides, but model.direction is forward' model.mask_token=256
mlm_rejected 'model.mask_token is 257, outside the vocabulary of 257' model.mask_token=257 model.direction=both
mlm_rejected 'model.mask_rate: 0 is out of range' model.mask_token=256 model.direction=both model.mask_rate=0
mlm_rejected 'model.mask_token: required' model.direction=both

# Windows in segments, with each direction of a block running through all segments: four of 64 and one of 44 positions.
short=("${mlm[@]}" data.batch=4 data.reset_token=46)
long=("${short[@]}" data.seq_len=300 model.layers="mamba gru mamba2 mlp lstm" model.n_layer=5 model.d_state=4)
for variant in "1" "1 model.segment=128" "1 data.micro_batch=2 model.segment=64" "2 data.micro_batch=1 model.segment=64 model.recompute=scan" \
    "2 data.micro_batch=1 model.segment=64 optim.shard=weights" "2 model.segment=192 comm.context=2" "4 model.segment=192 comm.context=2"; do
    read -ra words <<<"$variant"
    name=long-${variant//[^a-z0-9]/-}
    check "$name: trains" ranks "${words[0]}" "${long[@]}" "${words[@]:1}" run.name="$name" >"$name.log" 2>&1
    check "$name: the losses of whole windows" same_losses runs/long-1/metrics.jsonl "runs/$name/metrics.jsonl" 1e-6
    check "$name: and in validation" near <(evals long-1) <(evals "$name") 1e-6
done
# Attention sees all of a window from each position: it runs over the whole window, the other blocks in segments. Ranks
# that share the window share the heads.
seeing=("${short[@]}" data.seq_len=460 data.micro_batch=1 model.layers="attention mamba mlp attention" model.d_state=4 model.attn_window=300
    model.n_head=16 model.n_kv_head=4)
check "attention: whole windows" "$dtrain" "${seeing[@]}" run.name=seeing >seeing.log 2>&1
check "attention: whole windows, bf16" "$dtrain" "${seeing[@]}" run.precision=bf16 run.name=seeing-bf16 >seeing.log 2>&1
for variant in "2 optim.shard=weights" "2 comm.context=2" "4 comm.context=4" "4 comm.context=2 optim.shard=weights"; do
    read -ra words <<<"$variant"
    name=seeing-${variant//[^a-z0-9]/-}
    check "$name" ranks "${words[0]}" "${seeing[@]}" model.segment=64 "${words[@]:1}" run.name="$name" >seeing.log 2>&1
    same_training "attention over all segments, $variant" seeing "$name"
done
check "bf16" ranks 4 "${seeing[@]}" model.segment=64 comm.context=4 run.precision=bf16 run.name=seeing-4-bf16 >seeing.log 2>&1
check "bf16: losses" same_losses runs/seeing-bf16/metrics.jsonl runs/seeing-4-bf16/metrics.jsonl 1e-3 1e-2
reports_fates "${seeing[@]}" model.segment=64 comm.context=2 comm.timeout_s=3
for segment in 0 64; do
    check "whole chunks, $segment" "$dtrain" "${short[@]}" data.seq_len=256 model.layers="mamba mamba2" model.segment=$segment \
        run.name=chunks-$segment >chunks.log 2>&1
done
check "whole chunks: the same bits of the loss" test "$(first_loss chunks-0)" = "$(first_loss chunks-64)"
tree=("${long[@]}" data.micro_batch=1 model.segment=64 comm.reduce=reproducible)
check "segments, reproducible" ranks 1 "${tree[@]}" run.name=segments-1 >tree.log 2>&1
check "segments, on two ranks, sharded" ranks 2 "${tree[@]}" run.name=segments-2 optim.shard=gradients >tree.log 2>&1
check "segments: the same bits" same_bits runs/segments-1/$last runs/segments-2/$last
check "the plan" "$dtrain" --check "${long[@]}" model.segment=64 run.name=plan >plan.log 2>&1
check "the plan has segments" grep -q '^segments: 5 of 64 tokens a window' plan.log
segments_rejected() { # what, pattern, override …
    refused "$1" "$2" ranks 2 "${short[@]}" data.seq_len=300 model.segment=64 run.name=refused "${@:3}"
}
segments_rejected "attention, two sequences at a time" 'data.micro_batch: 2, but model.layers has blocks that look both ways over' \
    model.layers="mamba attention"
segments_rejected "attention, a window on two ranks" 'comm.context: 2, but model.layers .* ranks cannot share equally \(model.n_kv_head = 1\)' \
    model.layers="mamba attention" comm.context=2 data.micro_batch=1
segments_rejected "reproducible sums over segments" 'reproducible .*needs windows that are read from one end' comm.context=2 comm.reduce=reproducible \
    data.micro_batch=1
refused "text of an mlm" 'model.direction is both' "$dtrain" sample runs/mlm-1/$last --prompt 1
cd .. || exit
for segment in 0 64; do
    pools=(both.ini data.seq_len=150 data.batch=4 model.layers='mamba gru' model.n_layer=2 model.segment=$segment run.name=pools-$segment
        model.heads='buttons:bernoulli*8/max main_x:categorical*17 shoulder:categorical*5/mean')
    check "a policy, $segment" "$dtrain" "${pools[@]}" >pools.log 2>&1
    check "its evaluation, $segment" "$dtrain" eval "${pools[@]}" >pools-$segment.json 2>pools.log
done
same_training "a policy in segments" pools-0 pools-64
check "its scores" near <(scores pools-0) <(scores pools-64) 1e-4
check "its evaluation" near <(eval_loss <pools-0.json) <(eval_loss <pools-64.json) 1e-6
finish
