#!/usr/bin/env bash
# heads.sh DTRAIN GAME: the heads of a policy, whether they depend on each other or not, have the same losses and
# metrics on any ranks and in any micro-batches. eval and a resumed run continue from the checkpoint and its
# normalisation. What does not fit (heads, targets, frames) is a clear error.
game=$(realpath "$2")
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
game_policy "$game" heads.ini model.label_smoothing=0.05
heads_of() { # metrics.jsonl: the heads of each line, what is said of them by name, and the numbers to five digits
    sed -n 's/.*"heads"://p' "$1" | grep -oE '"[a-z_0-9]+":[0-9{-][0-9.e+-]*' | sed 's/:/ /; s/{/0/' | xargs printf '%s %.5g\n'
}
last=checkpoints/step-00000008

# For a validation the weights and their average are exchanged in arrays that training uses, which must leave no trace.
for every in 1 0; do
    check "an average, validated every $every" "$dtrain" heads.ini run.name=average-$every optim.ema=0.9 log.eval_every=$every >average.log 2>&1
done
check "… the same bits" same_bits runs/average-1/$last runs/average-0/$last

for chained in false true; do
    common=(heads.ini model.autoregressive=$chained)
    for variant in "1" "1 data.micro_batch=3 data.batch=12" "1 data.batch=12" "2 data.micro_batch=2" "4"; do
        read -ra words <<<"$variant"
        name=$chained-${variant//[^a-z0-9]/-}
        check "$name: trains" ranks "${words[0]}" "${common[@]}" "${words[@]:1}" run.name="$name" >"$name.log" 2>&1
    done
    one=runs/$chained-1
    "$repository/launch/curve.sh" "$one" >curve.txt
    check "$chained: the curve is of the loss, not of a head's" \
        test "$(awk 'NR == 1 { print $1 }' curve.txt)" = "$(train_lines "$one/metrics.jsonl" | cut -d' ' -f2 | sort -g | tail -n 1 | xargs printf %.3f)"
    for other in 2-data-micro-batch-2 4; do
        check "$chained: losses of $other" same_losses "$one/metrics.jsonl" "runs/$chained-$other/metrics.jsonl" 1e-6
        check "$chained: heads of $other" cmp <(heads_of "$one/metrics.jsonl") <(heads_of "runs/$chained-$other/metrics.jsonl")
    done
    check "$chained: losses of micro-batches" same_losses "runs/$chained-1-data-batch-12/metrics.jsonl" \
        "runs/$chained-1-data-micro-batch-3-data-batch-12/metrics.jsonl" 1e-6
    check "$chained: the loss falls" test "$(train_lines "$one/metrics.jsonl" |
        awk 'NR == 1 { first = $2 } END { print $2 < 0.97 * first }')" = 1
    line='"heads":\{"buttons":\{"loss":[0-9.e-]+,"accuracy":[0-9.e-]+\},"main_x".*"c_x":\{"loss":[0-9.e-]+,"error":[0-9.e-]+\},"c_y".*"shoulder"'
    check "$chained: every step has every head" test "$(grep -cE "$line" "$one/metrics.jsonl")" = 8
    line='"heads":\{"buttons":\{"loss":[0-9.e-]+,"accuracy":[0-9.e-]+,"balanced_accuracy":[0-9.e-]+,"f1":[0-9.e-]+,"auc":[0-9.e-]+\},"main_x".*'
    line+='"c_x":\{"loss":[0-9.e-]+,"error":[0-9.e-]+,"mae":[0-9.e-]+,"rmse":[0-9.e-]+,"r2":[0-9.e-]+\},"c_y".*"shoulder".*"auc"'
    check "$chained: every validation has all scores" test "$(grep -cE "$line" "$one/metrics.jsonl")" = 2
    check "$chained: TensorBoard has them" test "$(grep -aoE 'eval/(main_x/balanced_accuracy|buttons/(f1|auc)|c_y/r2)|train/c_x/(error|mae)' \
        "$one"/events.out.* | sort -u | tr '\n' ' ')" = "eval/buttons/auc eval/buttons/f1 eval/c_y/r2 eval/main_x/balanced_accuracy train/c_x/error "
    check "$chained: eval" "$dtrain" eval "${common[@]}" run.name=$chained-1 >eval.json 2>eval.log
    check "$chained: eval has the metrics of training" cmp <(heads_of eval.json) \
        <(grep '"event":"eval"' "$one/metrics.jsonl" | tail -n 1 | heads_of /dev/stdin)
    check_python "$chained: a confusion matrix of every class" - eval.json eval.log <<'EOF'
import json, sys
with open(sys.argv[1]) as file:
    found = json.load(file)
table = open(sys.argv[2]).read().split("main_x: rows are")[1].splitlines()[1:19]
for name, classes in ("main_x", 17), ("main_y", 17), ("shoulder", 5):
    head, cells = found["heads"][name], found["heads"][name]["confusion"]
    diagonal, total = sum(cells[i][i] for i in range(classes)), sum(map(sum, cells))
    recalls = [row[i] / sum(row) for i, row in enumerate(cells) if sum(row) > 0]
    assert len(cells) == classes and total == found["tokens"], (name, total)
    assert abs(diagonal / total - head["accuracy"]) < 1e-9, (name, head)
    assert abs(sum(recalls) / len(recalls) - head["balanced_accuracy"]) < 1e-9, (name, head)
assert [list(map(float, row.split())) for row in table[1:]] == [
    [i, *row] for i, row in enumerate(found["heads"]["main_x"]["confusion"])], table
assert all("confusion" not in found["heads"][name] for name in ("buttons", "c_x", "c_y")), found
for name in "c_x", "c_y":
    assert abs(found["heads"][name]["mae"] - found["heads"][name]["error"]) < 1e-5, found
EOF
    # The run's folder as it is after a kill after step 4.
    check "$chained: saves" "$dtrain" "${common[@]}" run.name=cut-$chained checkpoint.every=4 >cut.log 2>&1
    rm -r runs/cut-$chained/$last
    check "$chained: resumes" "$dtrain" "${common[@]}" run.name=cut-$chained >cut.log 2>&1
    check "$chained: from step 4" grep -q 'resuming from .*step-00000004' cut.log
    check "$chained: the bits are those of the whole run" same_bits runs/cut-$chained/$last "$one/$last"
done
check "a policy has no perplexity" test "$(cat runs/true-1/metrics.jsonl eval.json true-1.log | grep -c perplexity)" = 0
check "its positions are frames" grep -q '8 steps of 320 frames' true-1.log
check "verify" "$dtrain" verify runs/true-1/$last >verify.log 2>&1
check "weights of another run" "$dtrain" heads.ini run.name=tuned run.steps=1 run.init_from=runs/false-1/$last \
    >tuned.log 2>&1
check "… are used, with what their frames were normalised by" \
    test "$(awk "BEGIN { print $(first_loss tuned) < 0.97 * $(first_loss false-1) }")" = 1
check "frames as they are" "$dtrain" heads.ini run.name=raw run.steps=1 data.normalize=false >raw.log 2>&1
check "… have another loss" test "$(first_loss raw)" != "$(first_loss false-1)"

check "more scores than are kept" "$dtrain" heads.ini run.name=wide run.steps=1 model.heads=shoulder:categorical*65536 >wide.log 2>&1
check "… are warned of" test "$(grep -c 'warning: the AUC of head "shoulder" needs 1.3 GiB' wide.log)" = 1
check "… and that AUC is left out" grep -q '"f1":[0-9.e-]*,"auc":null' runs/wide/metrics.jsonl

synthetic=(data.train=synthetic:frames data.val= log.eval_every=0)
check "synthetic frames" "$dtrain" heads.ini run.name=synthetic run.steps=2 "${synthetic[@]}" model.frame_size=7 \
    data.normalize=false >synthetic.log 2>&1

ini=heads.ini
tokens=(model.heads=lm model.vocab_size=9 data.train=synthetic:random data.val= log.eval_every=0)
rejected "buttons:bernouli\*8: unknown kind 'bernouli': did you mean 'bernoulli'" 'model.heads=buttons:bernouli*8'
rejected 'expected NAME:KIND\(PARAMETERS\)\*N@WEIGHT/POOL, not "buttons\*8"' 'model.heads=buttons*8'
rejected 'not "a"' 'model.heads=a b:huber*2'
rejected 'not "a:huber\*2@-1"' 'model.heads=a:huber*2@-1'
rejected 'not "a:huber\*2x"' 'model.heads=a:huber*2x'
rejected 'not "a/b:huber"' 'model.heads=a/b:huber'
rejected 'not "a:huber/mode"' 'model.heads=a:huber/mode'
rejected 'not "a:huber\(1"' 'model.heads=a:huber(1'
rejected 'not "a:huber\(\)"' 'model.heads=a:huber()'
rejected 'not "a:huber\(1,x\)"' 'model.heads=a:huber(1,x)'
rejected 'a:bernoulli\(3\)\*2: expected no parameters' 'model.heads=a:bernoulli(3)*2'
rejected 'model.autoregressive' 'model.heads=buttons:bernoulli*8/last' model.autoregressive=true
rejected 'shoulder:categorical: 1 classes \(allowed: 2 to 65536\)' model.heads=shoulder:categorical
rejected 'duplicate name "shoulder"' 'model.heads=shoulder:categorical*5 shoulder:categorical*5'
rejected 'command line: model.heads: the name of h{32}:huber is longer than 31 bytes' "model.heads=$(printf 'h%.0s' {1..32}):huber"
rejected 'more than 32 heads' "model.heads=$(printf 'h%d:huber ' $(seq 33))"
rejected 'buttons' 'model.heads=buttons:bernoulli*9'
rejected 'jump' 'model.heads=jump:bernoulli*8'
rejected 'is not a whole number in \[0, 4\)' 'model.heads=shoulder:categorical*4'
rejected 'model.stem is tokens, but the heads of model.heads learn from frames' model.stem=tokens model.vocab_size=9
rejected 'model.stem is frames, but model.heads is lm' model.stem=frames model.heads=lm model.vocab_size=9
rejected 'model.vocab_size: required unless' model.heads=lm
rejected 'model.autoregressive: read by policy only, and the model is tokens, mamba' "${tokens[@]}" model.autoregressive=true
rejected 'synthetic:random holds tokens, not frames' data.train=synthetic:random data.val= log.eval_every=0
rejected 'synthetic:frames needs a policy and the size' "${synthetic[@]}"
rejected 'synthetic frames have no statistics' "${synthetic[@]}" model.frame_size=7
rejected 'data.reset_token: it is for documents of tokens' data.reset_token=3
rejected 'frames of 24 numbers .*\(model.frame_size, model.ids\) has 25' model.frame_size=25
rejected 'id columns of sizes \[\], .* has 24 and \[7\]' model.ids=7
rejected 'model.ids: expected sizes of tables, not "x"' 'model.ids=7 x'
rejected 'model.heads: shoulder:categorical\*5, but the model in runs/false-1/.* has buttons' \
    run.init_from=runs/false-1/$last 'model.heads=shoulder:categorical*5'
rejected 'model.autoregressive: true, but the model in runs/false-1/.* has false' \
    run.init_from=runs/false-1/$last model.autoregressive=true
rejected 'data.normalize: false, but these weights were trained on normalised frames' \
    run.init_from=runs/false-1/$last data.normalize=false
check_python "the same of columns around 0, whose deviations alone tell it" - runs/false-1/$last <<'EOF'
import json, os, shutil, struct, sys
shutil.copytree(sys.argv[1], "centred")
os.remove("centred/MANIFEST")
with open("centred/model.safetensors", "r+b") as file:
    size = struct.unpack("<Q", file.read(8))[0]
    begin, end = json.loads(file.read(size))["stem.mean"]["data_offsets"]
    file.seek(8 + size + begin)
    file.write(bytes(end - begin))
EOF
[ ! -d centred ] || rejected 'data.normalize: false, but these weights were trained on normalised frames' \
    run.init_from=centred data.normalize=false
# With a fixed tree over micro-batches and ranks, all digits of all metrics are equal.
for n in 1 4; do
    check "reproducible on $n ranks" ranks $n heads.ini model.autoregressive=true comm.reduce=reproducible data.micro_batch=2 \
        run.name=tree-$n >tree-$n.log 2>&1
done
check "reproducible: the same metrics" cmp <(sed -n 's/.*"heads"://p' runs/tree-1/metrics.jsonl) \
    <(sed -n 's/.*"heads"://p' runs/tree-4/metrics.jsonl)
check "reproducible: the same bits" same_bits runs/tree-1/$last runs/tree-4/$last
finish
