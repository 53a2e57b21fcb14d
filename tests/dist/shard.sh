#!/usr/bin/env bash
# optim.shard: a rank holds and updates only its pieces, and nothing else changes. The bits are those of a run without
# sharding, also when a run resumes in another form on another number of ranks, with averages, best checkpoints and
# skipped steps.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
size=${2:-whole} # short: each part of the code once
small_run
cp small.ini tiny.ini
# Large enough for a norm block of 65,536 elements on each of four ranks, and for a rest that all ranks hold.
sed -i 's/^steps = .*/steps = 8/; s/^d_model = .*/d_model = 128/; s/^n_layer = .*/n_layer = 4/; s/^seq_len = .*/seq_len = 16/
    /^val = /d' small.ini
printf '[checkpoint]\nevery = 2\nkeep = 0\n' >>small.ini
half=checkpoints/step-00000004
last=checkpoints/step-00000008

same_curve() { # a, b
    check "$1 and $2 have the same losses" cmp <(train_lines runs/$1/metrics.jsonl) <(train_lines runs/$2/metrics.jsonl)
}
same_weights() { # a, b
    check "$1 and $2 end in the same weights" cmp runs/$1/$last/model.safetensors runs/$2/$last/model.safetensors
    same_curve "$1" "$2"
}
branch() { # from, to: to has from's first half
    mkdir -p runs/$2/checkpoints
    cp -r runs/$1/$half runs/$2/checkpoints/
    cp runs/$1/metrics.jsonl runs/$2/
}
evals() { # run: as train lines, with the loss of the average
    sed -n 's/.*"event":"eval","step":\([0-9]*\),.*"ema_loss":\([^,]*\),.*/"event":"train","step":\1,"loss":\2,"grad_norm":0,/p' \
        "runs/$1/metrics.jsonl"
}
same_average() { # a, b
    check "$1 and $2 have the same average" cmp runs/$1/$last/ema.safetensors runs/$2/$last/ema.safetensors
    check "… and the same validation of it" cmp <(evals $1) <(evals $2)
}
gathered() { # run: bytes of the mean rank's all-gathers
    tr -d '\n\t' <runs/$1/profile.json | tr '{' '\n' | sed -n 's/"lane":"comm","name":"all-gather".*"bytes":\([0-9]*\).*/\1/p'
}
files() { # run: its optimizer files
    find runs/$1/$last -name 'optimizer-*' | wc -l
}

# On two ranks, the same bits with and without sharding, and from one to the other.
train whole 2
train shard 2 optim.shard=true comm.verify_replicas=1
same_weights shard whole
check "two ranks write two files" test "$(files shard)" -eq 2
check "both hold less than the whole" bash -c "! find runs/shard/$last -name 'optimizer-*' -size +$(($(stat -c %s \
    runs/whole/$last/optimizer-00001-of-00001.safetensors) * 9 / 10240))k | grep -q ." # nine tenths
branch shard unshard
train unshard 2
check "unsharded from a sharded checkpoint: the bits of the whole run" same_bits runs/unshard/$last runs/whole/$last
branch whole reshard
train reshard 2 optim.shard=true
same_weights reshard whole
check "from an unsharded checkpoint to the same states" diff -r -x MANIFEST -x trainer.json runs/reshard/$last runs/shard/$last
# In bf16 a step gathers two bytes for each weight, and four for the few that it reads in fp32. All masters are gathered
# only for what reads them: here once for a checkpoint, and twice to validate their average.
bf16=(run.precision=bf16 checkpoint.every=8 data.val="data/val-*.h5" optim.ema=0.9 log.eval_every=8 log.eval_batches=1)
train bf16-whole 2 "${bf16[@]}"
train bf16-shard 2 "${bf16[@]}" optim.shard=true
same_weights bf16-shard bf16-whole
same_average bf16-shard bf16-whole
check "bf16 storage: bytes gathered, $(gathered bf16-shard), are 8 x 2 + 3 x 4 per weight where fp32 has 8 x 4, $(gathered shard)" \
    awk -v a="$(gathered bf16-shard)" -v b="$(gathered shard)" 'BEGIN { r = a / b / (28 / 32); exit !(r > 0.99 && r < 1.01) }'
if [ "$size" != short ]; then
    train wire-whole 2 comm.dtype=bf16
    train wire-shard 2 comm.dtype=bf16 optim.shard=true
    same_weights wire-shard wire-whole
fi

if [ "$size" != short ]; then
    # Four ranks add in another order: 1e-5 relative is what the project promises.
    train four 4 optim.shard=true comm.bucket_mb=0.01
    check "four ranks have the losses of two" same_losses runs/four/metrics.jsonl runs/whole/metrics.jsonl 1e-5
    # … unless that order is fixed: then through any number of ranks, sharded or not.
    tree=(comm.reduce=reproducible data.micro_batch=2 run.precision=bf16)
    train tree 1 "${tree[@]}"
    train path 4 "${tree[@]}" optim.shard=true
    rm -r runs/path/checkpoints/step-0000000[68]
    train path 2 "${tree[@]}" optim.shard=true
    rm -r runs/path/$last
    train path 1 "${tree[@]}" optim.shard=true
    check "it resumes each time" grep -q 'resuming from .*step-00000006' path.log
    check "one rank says that it shards nothing" test "$(grep -c 'optim.shard changes nothing on one rank' path.log)" -eq 1
    check "4, 2 and 1 ranks: the bits of one rank" same_bits runs/path/$last runs/tree/$last
    same_curve path tree
fi

# What depends on more than an update: averages, best checkpoints, skipped steps.
average=(data.val="data/val-*.h5" optim.ema=0.9 checkpoint.best=true log.eval_every=2 log.eval_batches=2)
train average-whole 2 "${average[@]}"
train average-shard 2 "${average[@]}" optim.shard=true
same_weights average-shard average-whole
same_average average-shard average-whole
check "a checkpoint has the files that its MANIFEST lists, and no other" diff <(sed 's/.* //' runs/average-shard/$last/MANIFEST | sort) \
    <(cd runs/average-shard/$last && find . -type f ! -name MANIFEST -printf '%P\n' | sort)
branch average-shard average-path
train average-path 4 "${average[@]}" optim.shard=true
check "the average goes on on four ranks" same_losses <(evals average-path) <(evals average-whole) 1e-5
if [ "$size" != short ]; then
    for shard in false true; do
        ranks 2 small.ini run.name=skips-$shard run.steps=40 optim.lr=1000 optim.warmup_steps=0 optim.schedule=constant optim.grad_clip=0 \
            optim.max_skipped=3 checkpoint.every=0 optim.shard=$shard >skips-$shard.log 2>&1
        status=$?
        check "skipped steps: exit code $status, not 2" test $status -eq 2
    done
    same_curve skips-true skips-false
    check "… which were skipped" grep -q '"skipped":true' runs/skips-true/metrics.jsonl
fi

# The model is too small for one block on each rank, so all ranks hold all of it.
check "a tiny model" ranks 4 tiny.ini run.name=tiny optim.shard=true comm.verify_replicas=3 >tiny.log 2>&1
check "… writes one file" test "$(find runs/tiny/checkpoints/step-00000012 -name 'optimizer-*' | wc -l)" -eq 1
check "--check" ranks 2 --check small.ini optim.shard=true >check.txt 2>&1
check "… says what is saved: $(grep shard check.txt)" grep -q '^optim.shard saves [1-9][0-9.]* MiB on each of 2 ranks$' check.txt
finish
