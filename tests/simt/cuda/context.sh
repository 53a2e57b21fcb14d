#!/usr/bin/env bash
# Ranks that share each window (comm.context) train over simulated devices, with states sent by simulated NCCL, as one
# device does: every kind of block, both ways, documents, heads that pool, a last segment of odd length, groups, sharded
# weights, reproducible sums. No bit depends on which stream the device runs first, or when copies are made: where a wait is
# missing, one overtakes another. A rank that dies or stalls is named. With `short` as the last argument, for sanitizers, on
# two and four ranks in one order of streams.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../../lib.sh"
tool=$2 size=${3:-whole}
write_ini pools.ini run.steps=2 run.precision=fp32 run.device=cuda model.d_model=4 'model.layers=mamba attention' \
    model.d_state=2 model.expand=1 model.n_head=2 model.attn_window=100 model.stem=frames model.frame_size=7 \
    'model.heads=a:categorical*5 b:huber*2 c:categorical*3/max' model.segment=128 data.train=synthetic:frames \
    data.val=synthetic:frames data.seq_len=652 data.batch=2 data.micro_batch=1 data.normalize=false optim.lr=3e-3 \
    log.every=1 log.eval_every=2 log.eval_batches=1
write_ini kinds.ini run.steps=2 run.precision=fp32 run.device=cuda model.d_model=8 \
    'model.layers=mamba2 mamba gru lstm attention mlp' model.d_mlp=10 model.d_state=2 model.head_dim=4 model.n_head=2 \
    model.attn_window=100 model.vocab_size=9 model.segment=128 data.train=synthetic:random data.seq_len=140 data.batch=1 \
    data.reset_token=5 optim.lr=3e-3 log.every=1
export SIMT_DEVICES=4
last=checkpoints/step-00000002

run() { # name, ranks, arguments …
    local name=$1 n=$2
    shift 2
    check "$name" ranks "$n" "$@" run.name="$name" >"$name.log" 2>&1
}
losses() { grep -o '"step":.*"grad_norm":[^,]*' "runs/$1/metrics.jsonl"; }
same_run() { # run, run: the same bits of weights and optimizer, losses and validation
    same_bits "runs/$1/$last" "runs/$2/$last" && cmp <(losses "$1") <(losses "$2") && cmp <(evals "$1") <(evals "$2")
}

# Six segments: three for each of two ranks, two for each of three. Two micro-batches.
run one 1 pools.ini
run two 2 pools.ini comm.context=2 log.trace_steps=2:2
same_training "two devices share a window" one two
check "the first loss has the bits of one device: $(first_loss one), $(first_loss two)" test "$(first_loss one)" = "$(first_loss two)"
check "the trace has messages" "$tool" runs/two/trace-2-2.json 2 communication:send communication:receive
for order in descending late; do
    [ "$size" = whole ] || continue
    SIMT_ORDER=${order/late/ascending} SIMT_COPIES=$order run $order 2 pools.ini comm.context=2
    check "streams $order: the same bits" same_run two $order
done
if [ "$size" = whole ]; then
    run three 3 pools.ini comm.context=3
    same_training "three devices share a window" one three
fi
run groups 4 pools.ini comm.context=2 optim.shard=weights
same_training "two groups of two, weights spread" one groups
# Reproducible sums: the bits of one device in training. In a model without states no other message holds back a rank
# until its sums are sent.
alike() { # run, run: the same bits in training
    check "$1 and $2 have the same weights" same_bits "runs/$1/$last" "runs/$2/$last"
    check "$1 and $2 have the same losses and norms" cmp <(losses "$1") <(losses "$2")
}
run tree 1 pools.ini comm.reduce=reproducible
run tree-4 4 pools.ini comm.reduce=reproducible comm.context=2
alike tree tree-4
stateless=(kinds.ini model.layers=mlp data.seq_len=396 data.micro_batch=1 comm.reduce=reproducible)
run stateless 1 "${stateless[@]}"
run stateless-2 2 "${stateless[@]}" comm.context=2
alike stateless stateless-2

run kinds 1 kinds.ini
run kinds-2 2 kinds.ini comm.context=2
check "every kind of block: losses and norms" same_losses runs/kinds/metrics.jsonl runs/kinds-2/metrics.jsonl 1e-6 2e-6
both=(kinds.ini model.layers='mamba mamba2 gru' model.direction=both model.heads=mlm model.vocab_size=10 model.mask_token=9 data.seq_len=396)
run both 1 "${both[@]}"
run both-2 2 "${both[@]}" comm.context=2
check "both ways: losses and norms" same_losses runs/both/metrics.jsonl runs/both-2/metrics.jsonl 1e-6 2e-6

reports_fates pools.ini data.seq_len=140 comm.context=2 data.val= log.eval_every=0 comm.timeout_s=5

rejected() { # what, pattern, arguments …
    messages=1 refused "$1" "$2" ranks 2 kinds.ini run.name=bad comm.context=2 "${@:3}"
}
rejected "no NCCL" 'comm.context: 2 ranks share each window, between GPUs by NCCL alone' comm.backend=mpi
rejected "attention both ways" 'comm.context: 2, but model.layers .* which ranks share between CPUs alone' "${both[@]:2}"
finish
