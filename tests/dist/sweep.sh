#!/usr/bin/env bash
# sweep.sh DTRAIN: launch/sweep.sh trains once for each line of a file and continues after a stop. launch/curve.sh draws
# metrics.jsonl, reports which settings of runs differ and how the runs ended, and compares a run with a reference.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh" "$1"
export LC_ALL=C.UTF-8
launch=$repository/launch
small_run
cat >sweep.txt <<'END'
# a comment, a blank line, and

optim.lr=1e-3
optim.lr=3e-3 run.name=fast log.eval_every=4 # by name
optim.lr=1e-2 optim.weight_decay=0
END
check "a sweep" "$launch/sweep.sh" -np 1 "$dtrain" small.ini sweep.txt run.steps=10 >table.txt 2>sweep.log
for run in sweep-1 fast sweep-3; do check "$run is complete" grep -q '"complete"' runs/$run/state.json; done
row() { sed -n "s/^  $1  *//p" "${2:-table.txt}" | tr -s ' '; }
check "learning rates differ: $(cat table.txt)" test "$(row optim.lr)" = '1e-3 3e-3 1e-2'
check "… and weight decay" test "$(row optim.weight_decay)" = '0.1 0.1 0'
check "… batches do not" test -z "$(row data.batch)"
check "how they ended" test "$(row state) $(row 'at step') $(row tokens)" = 'complete complete complete 10 10 10 3840 3840 3840'
last() { # run, event: the loss of its last line
    sed -n "s/.*\"event\":\"$2\",.*\"loss\":\([^,]*\),.*/\1/p" "runs/$1/metrics.jsonl" | tail -n 1
}
for kind in train eval; do
    [ $kind = train ] && name='loss of that step' || name='validation loss'
    check "$kind: the last losses are those of the metrics" test "$(row "$name")" = "$(last sweep-1 $kind) $(last fast $kind) $(last sweep-3 $kind)"
done
check "the table fits 80 columns" test "$(wc -L <table.txt)" -le 80
check "training and validation are drawn: $(cat table.txt)" bash -c 'for m in a b c A B C; do grep -q "|.*$m" table.txt || exit 1; done'

"$dtrain" small.ini run.name=one run.steps=10 log.eval_every=5 >one.log 2>&1
"$launch/curve.sh" runs/one >curve.txt
check "one run: 10 losses and 2 validations: $(cat curve.txt)" test "$(sed -n 's/^.*|//p' curve.txt | tr -cd '*o' | wc -c)" -ge 10
# The highest and the lowest label are the largest and the smallest loss.
edge() { sed -n 's/^ *\([0-9.]*\) |.*/\1/p' curve.txt | $1 -n 1; }
extreme() { sed -n 's/.*"loss":\([^,]*\),.*/\1/p' runs/one/metrics.jsonl | LC_ALL=C sort -g | $1 -n 1; }
check "its labels are the losses: $(edge head) $(extreme tail) $(edge tail) $(extreme head)" awk \
    -v a="$(edge head)" -v b="$(extreme tail)" -v c="$(edge tail)" -v d="$(extreme head)" \
    'BEGIN { exit !(a - b < 0.001 && b - a < 0.001 && c - d < 0.001 && d - c < 0.001) }'

# Made-up metrics of 75 minutes and 3.5 seconds, of a rate that changes.
mkdir long short
for i in 1 2 3; do
    echo '{"event":"train","step":'$i',"epoch":0,"loss":'$i',"lr":1,"tokens":'$((i * 1000))',"step_ms":1501166.7,"tokens_per_s":'$((i * 100))',"skipped":false}'
done | tee long/metrics.jsonl | sed 's/"step_ms":[0-9.]*/"step_ms":1000/' >short/metrics.jsonl
for i in 1 2 3; do echo '{"event":"eval","step":'$i',"loss":'$((i < 2 ? 7 : 5))',"tokens":1}'; done | tee -a long/metrics.jsonl >>short/metrics.jsonl
"$launch/curve.sh" --table long short >made.txt
check "the lowest validation loss, and the first step that has it: $(cat made.txt)" test "$(row lowest made.txt) $(row 'of step' made.txt)" = '5 5 2 2'
check "the time in steps: $(cat made.txt)" test "$(row 'time in steps' made.txt) $(row 'tokens.s' made.txt) $(row tokens made.txt)" = \
    '1:15:03 0:00:03 200 200 3000 3000'

mean=$(sed -n 's/.*"event":"train",.*"loss":\([^,]*\),.*/\1/p' runs/one/metrics.jsonl | awk '{ s += $1 } END { printf "%.4f", s / NR }')
printf '# of ten steps\n10 %s 0.001\n11 1 1\n' "$mean" >reference
check "a reference" "$launch/curve.sh" --expect reference runs/one >expect.txt
check "a step that was not reached does not count: $(cat expect.txt)" test "$(wc -l <expect.txt)" -eq 2
for off in 0.01 -0.01; do
    printf '10 %s 0.001\n' "$(awk -v m="$mean" -v off=$off 'BEGIN { print m + off }')" >reference
    check "a loss that is $off off" bash -c "! '$launch/curve.sh' --expect reference runs/one >expect.txt"
    check "… is called wrong: $(cat expect.txt)" grep -q 'WRONG$' expect.txt
done
# In these made-up runs the second of twelve steps is not among the last ten.
mkdir ten
for i in $(seq 12); do
    echo '{"event":"train","step":'$i',"epoch":0,"loss":'$((i == 2 ? 1000 : 1))',"lr":1,"tokens":1,"step_ms":1,"tokens_per_s":1,"skipped":false}'
done >ten/metrics.jsonl
printf '12 1 0.001\n' >reference
check "the mean of ten steps" "$launch/curve.sh" --expect reference ten >expect.txt

messages=0
refused "a run that is not there" 'cannot read absent: give the folder' "$launch/curve.sh" runs/one absent
refused "no arguments" 'usage: launch/curve.sh' "$launch/curve.sh"
echo 'run.name=fast' >>sweep.txt
refused "two lines of one folder" 'lines 2 and 4 would both train in runs/fast' "$launch/sweep.sh" -np 1 "$dtrain" small.ini sweep.txt
sed -i '$d' sweep.txt
messages=1
echo 'optim.lr=x' >wrong.txt
refused "a wrong value" "with line 1 of wrong.txt: optim.lr=x" "$launch/sweep.sh" -np 1 "$dtrain" small.ini wrong.txt
messages=0
refused "ranks that are not given" 'usage: launch/sweep.sh' "$launch/sweep.sh" "$dtrain" small.ini sweep.txt

printf 'data.train=absent\noptim.lr=1e-3 run.name=after\n' >failing.txt
"$launch/sweep.sh" -np 1 "$dtrain" small.ini failing.txt run.steps=2 >failing.log 2>&1
code=$?
check "a run that failed gives its exit code, whatever came after it: $code: $(tail -n 3 failing.log)" test $code -eq 2
check "… and is named" grep -q 'sweep.sh: run 1 failed with exit code 2' failing.log
check "… the next one was trained" grep -q '"complete"' runs/after/state.json

# With more runs than letters, all are trained and the first 26 are compared. Only sweep.sh is the real script here.
mkdir made
cp "$launch/sweep.sh" made
printf '#!/bin/bash\nname=${!#}; mkdir -p "runs/${name#run.name=}" && touch "runs/${name#run.name=}/metrics.jsonl"\n' >made/run.sh
printf '#!/bin/bash\necho "$#"\n' >made/curve.sh
chmod +x made/*
seq -f 'optim.lr=%g' 27 >many.txt
check "27 runs: $(made/sweep.sh -np 1 "$dtrain" small.ini many.txt 2>&1 >compared.txt | tail -n 1)" test "$(ls -d runs/many-* | wc -l) $(cat compared.txt)" = "27 26"

# A stop ends the run and the sweep; the same command continues.
name=stop
"$launch/sweep.sh" -np 1 "$dtrain" small.ini sweep.txt run.dir= run.steps=100000 >stop.log 2>&1 &
sweep=$!
check "the sweep is under way" wait_for_step sweep-1 20
kill -TERM $sweep
wait $sweep
code=$?
check "a stop is no failure: exit code $code: $(tail -n 3 stop.log)" test $code -eq 0
check "the run is stopped" grep -q '"stopped"' runs/sweep-1/state.json
check "the next one has not begun" test "$(steps_done fast)" -eq 10
check "it says how to go on" grep -q 'stopped: the same command goes on' stop.log
finish
