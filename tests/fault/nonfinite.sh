#!/usr/bin/env bash
# Non-finite steps are skipped on all ranks, counted and logged. Too many in a row end the run.
#   nonfinite.sh DTRAIN SHARD_TOOL
shard_tool=$(realpath "$2")
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
small_run

values() { # run, key: of its train lines
    sed -n "s/.*\"event\":\"train\".*\"$2\":\([^,}]*\).*/\1/p" "runs/$1/metrics.jsonl"
}
states() { # checkpoint: the bytes of its optimizer's states, after a header that says the step
    local file=$1/optimizer-00001-of-00001.safetensors
    tail -c +$((9 + $(od -An -t u8 -N 8 "$file"))) "$file"
}
skipped_steps() {
    sed -n 's/.*"event":"train","step":\([0-9]*\),.*"skipped":true.*/\1/p' "runs/$1/metrics.jsonl" | tr '\n' ' '
}

# A learning rate with which the weights explode: from then on no step is finite.
diverges=(small.ini optim.lr=1000 optim.warmup_steps=0 optim.schedule=constant optim.grad_clip=0)
explodes=("${diverges[@]}" run.steps=200 optim.max_skipped=7 checkpoint.every=1)
for n in 1 2; do
    name=explodes-$n
    ranks $n "${explodes[@]}" run.name=$name >$name.log 2>&1
    status=$?
    skipped=$(skipped_steps $name)
    last=$(steps_done $name)
    check "$n ranks: exit code $status, not 2" test $status -eq 2
    check "$n ranks: $(grep -c '^dtrain: error' $name.log) errors" test "$(grep -c '^dtrain: error' $name.log)" -eq 1
    check "$n ranks: the error says how many, and where: $(grep '^dtrain: error' $name.log)" grep -q \
        "^dtrain: error: 7 steps in a row were skipped (optim.max_skipped = 7), the last at step $last: loss" $name.log
    check "$n ranks: state.json says so, too" grep -q '"state":"failed",.*"reason":"7 steps in a row' runs/$name/state.json
    check "$n ranks: the hint" grep -q 'hint: lower optim.lr' $name.log
    check "$n ranks: the last seven steps are logged as skipped: $skipped" grep -q \
        "$(seq -s ' ' $((last - 6)) "$last") \$" <<<"$skipped"
    check "$n ranks: the first steps were finite" test "$last" -gt 7
    check "$n ranks: a loss that is not finite is null" test "$(values $name loss | tail -n 1)" = null
    check "$n ranks: no line has nan or inf" bash -c "! grep -Eiq '(nan|inf)[,}]' runs/$name/metrics.jsonl"
    check "$n ranks: each skipped step is reported once" test "$(grep -c 'warning: step .* skipped' $name.log)" -eq \
        "$(wc -w <<<"$skipped")"
    newest=$(newest "runs/$name")
    check "$n ranks: the newest checkpoint verifies" "$dtrain" verify "$newest" >/dev/null 2>&1
    # Skipped updates change nothing: the weights are those of the last applied step.
    before=$(ls -d runs/$name/checkpoints/step-* | tail -n 2 | head -n 1)
    check "$n ranks: two checkpoints among the skipped steps have the same weights" cmp "$newest/model.safetensors" "$before/model.safetensors"
    check "$n ranks: … and the same optimizer states" cmp <(states "$newest") <(states "$before")
    check "$n ranks: trainer.json counts the skips" grep -Eq '"skipped_in_a_row":\s*6,' "$newest/trainer.json"
done
ranks 1 "${explodes[@]}" run.name=explodes-1 >again.log 2>&1
check "resumed after six, it fails at the next step: $(grep 'in a row' again.log)" grep -q "^dtrain: error: 7 steps in a row .* the last at step $last:" again.log
check "one rank and two skip the same steps" test "$(skipped_steps explodes-1)" = "$(skipped_steps explodes-2)"
# Fewer than optim.max_skipped, but they are the last steps of the run, so the run did not learn what it should have.
for n in 1 2; do
    name=diverged-$n
    refused "$n ranks: a run that ends before that" "^dtrain: error: the last 7 steps of the run were all skipped; the last that was applied is step $((last - 7))" \
        ranks $n "${diverges[@]}" run.name=$name run.steps="$last"
    cp refused.log $name.log
    check "$n ranks: one error" test "$(grep -c '^dtrain: error' $name.log)" -eq 1
    check "$n ranks: state.json says so, too: $(cat runs/$name/state.json)" grep -q \
        "\"state\":\"failed\",\"step\":$last,\"reason\":\"the last 7 steps" runs/$name/state.json
    check "$n ranks: its last checkpoint is kept" "$dtrain" verify "$(printf 'runs/%s/checkpoints/step-%08d' $name "$last")" >/dev/null 2>&1
    refused "$n ranks: the same command again" 'the last 7 steps of the run were all skipped' ranks $n "${diverges[@]}" run.name=$name run.steps="$last"
done
cp diverged-1.log diverged.log
check "… validates to nan: $(grep 'validation loss' diverged.log)" grep -q 'validation loss nan  perplexity nan  over' diverged.log
check "… and says why" grep -q "warning: step $last: the validation loss is not finite, since the weights diverged" diverged.log

# Pairs, in file order: slot k trains row k*S + s at step s + 1, so step 4 of each epoch counts no token.
S=9
"$shard_tool" pairs pairs.h5 8 48 $S 3 4 ignored || exit 1
pairs=(small.ini data.train=pairs.h5 data.val= data.shuffle=false model.vocab_size=128 run.steps=24 optim.max_skipped=2)
for n in 1 2; do
    name=ignored-$n
    check "$n ranks: batches without a label do not stop the run" ranks $n "${pairs[@]}" run.name=$name >$name.log 2>&1
    check "$n ranks: steps 4, 13 and 22 are skipped, not $(skipped_steps $name)" test "$(skipped_steps $name)" = "4 13 22 "
    check "$n ranks: the loss of a skipped step is null" test "$(values $name loss | sed -n 4p)" = null
    check "$n ranks: all others are numbers" test "$(values $name loss | grep -c '^[0-9]')" -eq 21
    check "$n ranks: training continued: the loss falls" awk 'NR == 1 { first = $1 } END { exit !($1 < first - 0.3) }' \
        <(values $name loss)
done
check "epochs are logged" test "$(values ignored-1 epoch | uniq -c | xargs)" = "9 0 9 1 6 2"
check "trainer.json counts the three skips" grep -q '"skips":\s*3,' runs/ignored-1/checkpoints/step-00000024/trainer.json
check "one rank and two train alike" same_losses <(grep -v '"skipped":true' runs/ignored-2/metrics.jsonl) \
    <(grep -v '"skipped":true' runs/ignored-1/metrics.jsonl) 1e-5
"$shard_tool" pairs silent.h5 8 48 $S 0 $S ignored || exit 1
for steps in 1 3; do # fewer than optim.max_skipped
    refused "no label at all, $steps steps" "^dtrain: error: every step of the run was skipped \\($steps in total\\)" ranks 1 small.ini \
        data.train=silent.h5 data.val= model.vocab_size=128 optim.warmup_steps=0 run.name=silent-$steps run.steps=$steps
done
check "a run may end with one skipped step" ranks 1 "${pairs[@]/run.steps=24/run.steps=4}" run.name=one-skipped >one.log 2>&1
refused "run.patience does not hide it" 'the last [0-9]+ steps of the run were all skipped' ranks 1 "${diverges[@]}" \
    run.name=patience run.steps=200 optim.max_skipped=100 log.eval_every=2 run.patience=3

# Checkpoints contain the skips: an interrupted run ends with the same bits.
check "a run with a checkpoint after a skipped step" ranks 1 "${pairs[@]}" run.name=pieces checkpoint.every=4 \
    checkpoint.keep=9 >pieces.log 2>&1
rm -rf runs/pieces/checkpoints/step-*{08,12,16,20,24}
check "the same command" ranks 1 "${pairs[@]}" run.name=pieces >>pieces.log 2>&1
check "… resumes from the skipped step" grep -q 'resuming from runs/pieces/checkpoints/step-00000004' pieces.log
check "… and ends with the same bits" same_bits runs/pieces/checkpoints/step-00000024 runs/ignored-1/checkpoints/step-00000024
finish
