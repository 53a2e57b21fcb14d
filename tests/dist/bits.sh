#!/usr/bin/env bash
# Two runs of one configuration give the same bits: losses, gradient norms, weights and optimizer states after 20 steps,
# for language models and policies of every kind of block, in fp32 and bf16.
#   bits.sh DTRAIN GAME               runs each twice, on two ranks
#   bits.sh DTRAIN GAME BEFORE.txt    runs each once, on 1, 2 and 4 ranks, leaves their hashes in bits.txt, and compares
#                                     them with BEFORE.txt, which the same command of an earlier build wrote; writes that
#                                     file if it does not exist. For changes that must not change a bit; on one machine.
game=$(realpath "$2")
before=${3:+$(realpath -m "$3")}
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
small_run
"$game" policy 24 40 3 >game.log || { cat game.log >&2; exit 1; }
cat >policy.ini <<'END'
[run]
steps = 20
[model]
d_model = 32
heads = buttons:bernoulli*8@2 main_x:categorical*17 c_x:huber c_y:regression@0.1 shoulder:categorical*5
[data]
train = policy/train-*.h5
val = policy/val.h5
seq_len = 20
batch = 8
[optim]
lr = 3e-3
ema = 0.9
END
counts=(2 2)
[ -z "$before" ] || counts=(1 2 4)

bits() { # run: hashes of its losses and norms, and of each file of its last checkpoint that holds numbers
    { train_lines "$1/metrics.jsonl" | md5sum && cat "$1"/checkpoints/step-00000020/{model,optimizer-*}.safetensors | md5sum; } |
        cut -c1-32 | tr '\n' ' '
}
models() { # configuration, patterns of model.layers …
    local config=$1 layers precision n name i
    for layers in "${@:2}"; do
        for precision in fp32 bf16; do
            for i in "${!counts[@]}"; do
                n=${counts[i]} name=${config%.ini}-${layers//[^a-z0-9]/-}-$precision-$n-$i
                check "$name" ranks "$n" "$config" run.steps=20 model.layers="$layers" model.n_layer="$(wc -w <<<"$layers")" \
                    run.precision=$precision run.name="$name" run.threads=1 >"$name.log" 2>&1
                echo "$name $(bits "runs/$name")" >>bits.txt
                [ -n "$before" ] || [ "$i" = 0 ] || check "$name: the bits of its first run" \
                    test "$(bits "runs/$name")" = "$(bits "runs/${name%-*}-0")"
            done
        done
    done
}
models small.ini mamba mamba2 "mamba attention mlp" "gru lstm"
models policy.ini mamba mamba2 attention gru lstm mlp
check "every run has its own bits" test "$(cut -d' ' -f3 bits.txt | sort -u | wc -l)" -ge 20
if [ -n "$before" ] && [ -f "$before" ]; then
    check "the bits are those of $before" diff bits.txt "$before" >&2
elif [ -n "$before" ]; then
    cp bits.txt "$before"
fi
finish
