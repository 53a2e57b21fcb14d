#!/usr/bin/env bash
# console.sh DTRAIN: what people read fits 80 columns, in each command, on a terminal and in a file, except a path or a
# line of JSON that is longer by itself. A run ends with its total time, and Ctrl-C is reported as Ctrl-C.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh" "$1"
unset COLUMNS
export LC_ALL=C.UTF-8
small_run

fits() { # a command must succeed and its lines, which are left in $shown, must fit
    local what=$1 long
    shift
    "$@" >out.txt 2>error.txt </dev/null
    check "$what: exit code $?" test $? -eq 0
    tr '\r' '\n' <error.txt | sed 's/\x1b\[K//' | cat - out.txt >"$what.txt"
    check "$what says something" test -s "$what.txt"
    long=$(grep -av '^{' "$what.txt" | awk 'length > 80')
    check "$what: too wide: $long" test -z "$long"
}
cp small.ini policy-of-the-widest-name.ini
fits check "$dtrain" --check policy-of-the-widest-name.ini run.name=a-name-that-makes-the-lines-of-a-run-longer
check "what was set comes first: $(head -n 2 check.txt)" test "$(head -n 2 check.txt | tr -s ' \n' ' ')" = \
    '[run] name = a-name-that-makes-the-lines-of-a-run-longer # command line '
check "no default is shown" test "$(grep -c '# default' check.txt)" -eq 0
check "the time of a fresh run: $(tail -n 2 check.txt)" grep -qE '^duration: about 0:0[0-9] for 12 steps of [0-9.]+ ms: from steps of 384 tokens timed now' \
    <(tr '\n' ' ' <check.txt | grep -o 'duration:.*' | tr -s ' ')
"$dtrain" --check --all small.ini >all.ini
sed '/^device:/,$d' all.ini >again.ini
check "… but by --all, which can be read again" "$dtrain" --check again.ini >out.txt
check "it shows defaults" grep -q '^prefetch = 2 *# default' all.ini
fits train ranks 2 small.ini
check "a step's loss, time left and rate: $(cat train.txt)" grep -qE '^dtrain: step 11/12  loss [0-9.]+  norm .*  [0-9]+ tokens/s  ETA 0:0[0-9]$' train.txt
check "a run ends with its total time: $(tail -n 1 train.txt)" grep -qE '^dtrain: total time 0:[0-9]{2} for 12 steps, [0-9]+ tokens/s overall$' \
    <(tail -n 1 train.txt)
fits resume "$dtrain" small.ini run.steps=14 log.console=progress
check "the steps of this start count: $(tail -n 1 resume.txt)" grep -q 'for 2 steps' resume.txt
"$dtrain" --check small.ini run.steps=114 >resumed.txt
check "the time left of a run that can be resumed: $(tail -n 2 resumed.txt)" grep -qE '^duration: about [0-9:]+ for 100 steps of [0-9.]+ ms: the median of steps 1 to 14 of this run' \
    <(tr '\n' ' ' <resumed.txt | grep -o 'duration:.*' | tr -s ' ')
fits trained "$dtrain" small.ini run.steps=14
check "none, no time" test "$(grep -c 'total time' trained.txt)" -eq 0
fits eval "$dtrain" eval small.ini
fits order "$dtrain" order small.ini --steps 1:2
fits info "$dtrain" info
fits verify "$dtrain" verify data
fits sample "$dtrain" sample runs/dtrain --tokens 8
wide=$(COLUMNS=200 "$dtrain" --check small.ini run.name=other | awk 'length > 80' | wc -l)
check "COLUMNS widens lines" test "$wide" -gt 0
"$dtrain" --check small.ini data.batch=7 optim.lr=x data.train=absent model.d_modle=3 optim.schedule=cosin >refused.txt 2>&1
long=$(awk 'length > 80' refused.txt)
check "errors: too wide: $long" test -z "$long" -a -s refused.txt

# Ctrl-C
name=stopped
start 1 small.ini run.name=stopped run.steps=1000000
check "training is under way" wait_for_step stopped 3
kill -INT "$(pgrep -P $job | head -n 1)"
wait $job
check "Ctrl-C stops it: exit code $?" test $? -eq 0
check "it is called so: $(cat stopped.log)" grep -q '^dtrain: stopped by Ctrl-C after step' stopped.log
check "and in state.json" grep -q '"reason": *"Ctrl-C"' runs/stopped/state.json
finish
