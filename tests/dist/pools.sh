#!/usr/bin/env bash
# pools.sh DTRAIN GAME: heads that pool their window, alone and together with a head that does not, have the same losses
# and scores on any ranks and in any micro-batches. The weight of a window counts once. Also eval, a resumed run,
# carried state, and what is refused.
game=$(realpath "$2")
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
mixed=buttons:bernoulli*8/max\ main_x:categorical*17\ shoulder:categorical*5@2/mean\ c_y:regression/last\ main_y:categorical*17/mean
game_policy "$game" pools.ini model.heads="$mixed"
alone=shoulder:categorical*5/mean\ buttons:bernoulli*8/last
last=checkpoints/step-00000008
scores() { # what each line says of the heads, to five digits
    sed -n 's/.*"heads"://p' "$1" | grep -oE '[a-z_0-9]+":[0-9-][0-9.e+-]*' | sed 's/":/ /' | xargs printf '%s %.5g\n'
}
tokens_of() { # counted positions and windows in the evaluations
    sed -n 's/.*"event":"eval".*"tokens":\([0-9]*\).*/\1/p' "runs/$1/metrics.jsonl" | sort -u
}

for kind in mixed alone; do
    common=(pools.ini model.heads="${!kind}")
    for variant in "1" "1 data.micro_batch=2" "2 data.micro_batch=2" "4"; do
        read -ra words <<<"$variant"
        name=$kind-${variant//[^a-z0-9]/-}
        check "$name: trains" ranks "${words[0]}" "${common[@]}" "${words[@]:1}" run.name="$name" >"$name.log" 2>&1
        check "$name: the losses of one rank" same_losses runs/$kind-1/metrics.jsonl "runs/$name/metrics.jsonl" 1e-6
        check "$name: the scores of one rank" cmp <(scores runs/$kind-1/metrics.jsonl) <(scores "runs/$name/metrics.jsonl")
    done
    check "$kind: the validation loss falls" test "$(grep '"event":"eval"' runs/$kind-1/metrics.jsonl |
        sed 's/.*"step":[0-9]*,"loss":\([0-9.]*\).*/\1/' | awk 'NR == 1 { first = $1 } END { print $1 < first }')" = 1
    check "$kind: eval" "$dtrain" eval "${common[@]}" run.name=$kind-1 >eval.json 2>eval.log
    check "$kind: eval has the scores of training" cmp <(scores eval.json) \
        <(grep '"event":"eval"' runs/$kind-1/metrics.jsonl | tail -n 1 | scores /dev/stdin)
    check "$kind: saves" "$dtrain" "${common[@]}" run.name=cut-$kind checkpoint.every=4 >cut.log 2>&1
    rm -r runs/cut-$kind/$last
    check "$kind: resumes" "$dtrain" "${common[@]}" run.name=cut-$kind >cut.log 2>&1
    check "$kind: the bits are those of the whole run" same_bits runs/cut-$kind/$last runs/$kind-1/$last
    for n in 1 4; do
        check "$kind: reproducible on $n ranks" ranks $n "${common[@]}" comm.reduce=reproducible data.micro_batch=2 \
            run.name=tree-$kind-$n >tree.log 2>&1
    done
    check "$kind: reproducible: the same scores" cmp <(sed -n 's/.*"heads"://p' runs/tree-$kind-1/metrics.jsonl) \
        <(sed -n 's/.*"heads"://p' runs/tree-$kind-4/metrics.jsonl)
    check "$kind: reproducible: the same bits" same_bits runs/tree-$kind-1/$last runs/tree-$kind-4/$last
    carried=(data.carry_state=true data.shuffle=false data.seq_len=20)
    for n in 1 2; do
        check "$kind: carries state on $n ranks" ranks $n "${common[@]}" "${carried[@]}" run.name=carry-$kind-$n >carry.log 2>&1
    done
    check "$kind: carries, saves" "$dtrain" "${common[@]}" "${carried[@]}" run.name=cut-carry-$kind checkpoint.every=4 >cut.log 2>&1
    rm -r runs/cut-carry-$kind/$last
    check "$kind: carries, resumes" "$dtrain" "${common[@]}" "${carried[@]}" run.name=cut-carry-$kind >cut.log 2>&1
    check "$kind: carried: the bits of the whole run" same_bits runs/cut-carry-$kind/$last runs/carry-$kind-1/$last
    check "$kind: carried: the same losses" same_losses runs/carry-$kind-1/metrics.jsonl runs/carry-$kind-2/metrics.jsonl 1e-6
done
# A window counts once, however many heads pool it.
"$dtrain" --check pools.ini run.name=other >check.log 2>&1
check "windows" grep -q 'validation data: .*, 2513 frames, 67 windows of 40' check.log
check "… alone count once" test "$(tokens_of alone-1)" = 67
check "… beside positions" test "$(tokens_of mixed-1)" = $((2513 + 67))
check_python "… of the confusion matrix of a head that pools" -c '
import json
heads = json.load(open("eval.json"))["heads"]
assert sum(map(sum, heads["shoulder"]["confusion"])) == 67, heads'

ini=pools.ini
rejected 'model.heads: buttons pools its window \(/max\)' model.autoregressive=true
for pool in mean last; do
    rejected "model.heads: shoulder pools its window \\(/$pool\\)" model.heads="main_x:categorical*17 shoulder:categorical*5/$pool" model.autoregressive=true
done
rejected 'not "shoulder:categorical\*5/median"' 'model.heads=shoulder:categorical*5/median'
rejected 'not "shoulder:categorical\*5/"' 'model.heads=shoulder:categorical*5/'
rejected 'model.heads: shoulder:categorical\*5/max, but the model in runs/alone-1/.* has shoulder' \
    run.init_from=runs/alone-1/$last 'model.heads=shoulder:categorical*5/max'
finish
