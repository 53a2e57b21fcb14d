#!/usr/bin/env bash
# One job per folder: a second one waits for the first, then gives up and names it. Reading is always allowed.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
small_run
job=(small.ini run.name=shared run.steps=4000 checkpoint.every=5)

"$dtrain" "${job[@]}" >first.log 2>&1 &
first=$!
has_checkpoint() { ls -d runs/shared/checkpoints/step-* >/dev/null 2>&1; }
check "the first job trains and saves" wait_until has_checkpoint
kill -STOP $first # it holds the lock, and nothing changes in the folder
find runs/shared -type f -exec sha256sum {} + | sort >before.txt
newest=$(newest runs/shared)

start=$SECONDS
"$dtrain" "${job[@]}" run.resume=never >second.log 2>&1 &
second=$!
check "the second says what it waits for" wait_until grep -q \
    "dtrain: runs/shared is in use by process $first on host $(uname -n): waiting up to 30 s" second.log
check "--check of its folder" "$dtrain" --check "${job[@]}" >check.log 2>&1
check "… and says where it would resume from" grep -q "would resume from $newest" check.log
check "--check on two ranks" ranks 2 --check "${job[@]}" >check-2.log 2>&1
check "the order of its steps" "$dtrain" order "${job[@]}" --steps 1:2 >order.log 2>&1
check "validation of its newest checkpoint" "$dtrain" eval "${job[@]}" >eval.log 2>&1
check "verifying it" "$dtrain" verify "$newest" >verify.log 2>&1
wait $second
status=$?
check "the second: exit code $status, not 2" test $status -eq 2
check "the second waited $((SECONDS - start)) s" test $((SECONDS - start)) -ge 29
check "the second names the holder: $(grep '^dtrain: error' second.log)" grep -q \
    "^dtrain: error: runs/shared is in use by process $first on host $(uname -n)" second.log
check "… and says what to do" grep -q '^  hint: stop that job, or give this one another run.name or run.dir' second.log
check "none of this changed the folder" cmp before.txt <(find runs/shared -type f -exec sha256sum {} + | sort)

# A requeued job starts while its predecessor still saves: it waits and then resumes.
"$dtrain" small.ini run.name=shared run.steps=4000 checkpoint.every=5 >third.log 2>&1 &
third=$!
check "the third waits" wait_until grep -q 'is in use' third.log
kill -USR1 $first
kill -CONT $first
wait $first
check "the first stops cleanly" test $? -eq 0
stopped=$(sed -n 's/.*stopped by SIGUSR1 after step \([0-9]*\) .*/\1/p' first.log)
check "the third continues after the last step of the first, $stopped" wait_for_step shared $((stopped + 1))
check "… from its checkpoint" grep -q "resuming from runs/shared/checkpoints/step-$(printf %08d "$stopped")" third.log

# A killed job releases the lock.
kill -KILL $third
wait $third 2>/dev/null
check "after a kill the folder is free at once" "$dtrain" small.ini run.name=shared \
    run.steps=$(($(steps_done shared) + 5)) >fourth.log 2>&1
check "… without waiting" eval '! grep -q "is in use" fourth.log'
finish
