#!/usr/bin/env bash
# The profile: on two ranks its table adds up, the trace has every track, and SIGUSR2 prints the table.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
tool=$2
small_run

# Seconds of the mean rank: of the run, and the sum over the rows of the phases.
adds_up() { # profile.txt
    awk 'NR == 1 { for (i = 1; i < NF; i++) if ($(i + 1) == "s;") total = $i }
        /^phases/ { phases = 1; next }
        /^$/ { phases = 0 }
        phases && match($0, /^  [a-zA-Z][^0-9]*[a-z] +/) { $0 = substr($0, RLENGTH); sum += $2; share += $3; rows++ }
        END { d = total - sum
              if (d < 0) d = -d
              # each figure is rounded to a millisecond
              if (!(rows >= 8 && total > 0 && d <= 0.002 * total + 0.001 * rows)) {
                  print rows " phases add up to " sum " of " total; exit 1 }
              if (!(share > 99 && share < 101)) { print "shares add up to " share " %"; exit 1 } }' "$1"
}

count_of() { # profile.txt, row
    sed -n "s/^  $2  *\([0-9][0-9]*\) .*/\1/p" "$1" | head -n 1
}

# Where the system allows it, the clock of rank 1 is a day ahead.
cat >skew.sh <<'EOF'
#!/bin/bash
[ "$OMPI_COMM_WORLD_RANK" = 1 ] && unshare --time --monotonic 86400 true 2>/dev/null &&
    exec unshare --fork --time --monotonic 86400 "$@"
exec "$@"
EOF
check "two ranks" "${local_mpirun[@]}" -np 2 bash skew.sh "$dtrain" small.ini run.name=two log.trace_steps=5:11 checkpoint.every=5 comm.verify_replicas=5 log.eval_every=6 log.eval_batches=2 >two.log 2>&1
table=runs/two/profile.txt
check "the phases add up to the run" adds_up $table
check "twelve forward passes" test "$(count_of $table forward)" = 12
check "twelve updates" test "$(count_of $table adamw)" = 12
check "replicas are compared twice" test "$(count_of $table 'comparing replicas')" = 2
check "scans of two layers" test "$(count_of $table scan_forward)" = 24
check "scans of two layers in two validations of two batches" test "$(count_of <(sed -n '/^ops of validation/,/^$/p' $table) scan_forward)" = 8
check "the same rows for programs" test "$(awk '/^$/ { rows = 0 } /^  +count/ { rows = 1; next } rows { n++ } END { print n }' $table)" = \
    "$(grep -c '"slowest_rank"' runs/two/profile.json)"
check "each row has the mean rank's time, that of the slowest, and their ratio" awk '
    /^[a-z]/ { on = NR > 1 } /^  +count/ { next }
    on && /^  [a-z]/ { $0 = substr($0, 31); sub("%", ""); rows++
        off = 5e-5 / $2; ratio = $4 / $2; each = 1000 * $2 / $1; apart += ratio > 1.02
        if ($2 > 1e-3 && ($6 > ratio * (1 + 2 * off) + 0.006 || $6 < ratio * (1 - 2 * off) - 0.006 || $7 > each * (1 + 2 * off) + 1e-4 || $7 < each * (1 - 2 * off) - 1e-4)) { print; bad = 1 } }
    END { exit bad || rows < 20 || apart == 0 }' $table
check "no floor without limits" bash -c "! grep -q floor $table"
check "the largest phases are on the console" grep -qE 'where the time went: ([a-z ]+ [0-9.]+ %, ){4}[a-z ]+ [0-9.]+ %$' two.log
top=$(sed -n 's/.*where the time went: \([a-z ]*[a-z]\) \([0-9.]*\) %.*/\1 \2%/p' two.log)
check "… with the table's shares: $top" grep -qE "^  ${top% *} .* ${top##* } " $table
# The checkpoint of step 5 is complete before the one of step 10 begins.
check "the trace is whole" "$tool" runs/two/trace-5-11.json 2 compute:forward compute:scan_backward compute:optimizer \
    communication:all-reduce "input:filling a batch" checkpoint:snapshot 0/checkpoint:write
check "it ends with its last step: $(grep -c '"name":"forward"' runs/two/trace-5-11.json)" test "$(grep -c '"name":"forward"' runs/two/trace-5-11.json)" = 14
check "the same losses as without" ranks 2 small.ini run.name=off log.profile=false log.eval_every=6 log.eval_batches=2 >off.log 2>&1
check "… they are" same_bits runs/two/checkpoints/step-00000012 runs/off/checkpoints/step-00000012
check "profile.json ends with a newline" test -z "$(tail -c 1 runs/two/profile.json)"
check "no table is written when off" test ! -e runs/off/profile.txt -a ! -e runs/off/profile.json
check "--check plans its memory" grep -q '^  host profile ' <("$dtrain" --check small.ini log.trace_steps=1:2)
check "… and that of comparisons" grep -q '^  checksums ' <("$dtrain" --check small.ini comm.verify_replicas=1)
check "… where there is one" test "$("$dtrain" --check small.ini log.profile=false | grep -c 'profile  ')" = 0

# Limits as dtrain bench writes them.
"$dtrain" info >info.txt 2>&1
device=$(sed -n 's/^device .*: \(.*\) (.*/\1/p' info.txt | head -n 1)
limits='"copy_gb_per_s":10,"gemm_fp32_gflops":100,"gemm_bf16_gflops":100,"gexp_per_s":1,"gexp2_per_s":2,"glane_per_s":50}'
echo "{\"bench\":\"machine\",\"name\":\"another\",\"threads\":1,$limits" >other.jsonl
check "limits of another machine are refused" bash -c "! '$dtrain' small.ini run.name=limits log.limits=other.jsonl 2>limits.log"
check "… by name" grep -q 'was measured on another, but this run uses' limits.log
sed "s/\"another\"/\"$(sed -n 's/.*this run uses \(.*\)/\1/p' limits.log | head -n 1)\"/" other.jsonl >limits.jsonl
check "limits of this one" "$dtrain" small.ini run.name=limits log.limits=limits.jsonl >limits.log 2>&1
# The floor of a product is the larger of copying and multiplying, for each call. An update only copies.
check "… give floors, and their shares" awk '
    FNR == NR { if (/^ops of/) ops = /training/; if (ops && /^  [a-z]/) share[rows++] = $NF; next }
    /"lane":"op"/ {
        gsub(/"[a-z_]*":/, ""); n = split($0, v, ","); seconds = v[4] + 0; floor = v[9] + 0
        copy = v[7] / 10e9; multiply = v[8] / 100e9
        bad += floor < copy * 0.999999 || (/gemm/ && (floor < multiply * 0.999999 || floor > copy + multiply)) || (/adamw/ && floor > copy * 1.000001)
        got = share[row++]; want = floor / seconds; bad += got < want - 0.0051 || got > want + 0.0051 }
    END { exit !(rows > 8 && row == rows && bad == 0) }' runs/limits/profile.txt <(tr -d '\n\t' <runs/limits/profile.json | tr '{' '\n')
# Two ranks, each with as much work as the single rank: rows and floors are those of the mean rank.
work() { # run: count, bytes, FLOPs and floor of its ops
    tr -d '\n\t' <"runs/$1/profile.json" | tr '{' '\n' | grep '"lane":"op"' | sed 's/"seconds".*"bytes"/"bytes"/' | sort
}
check "limits on two ranks" ranks 2 small.ini run.name=limits-2 data.batch=16 log.limits=limits.jsonl \
    run.threads="$(sed -n 's/.*"name":".*, \([0-9]*\) thread.*/\1/p' limits.jsonl)" >limits.log 2>&1
check "… a mean rank does as much as one rank does alone" diff <(work limits) <(work limits-2)
# If everything else is fast, exponentials are the floor: one for each channel of a convolution, and two more than one
# for each state in a scan.
sed 's/"gexp2/"g2/; s/\("[cg][a-z_0-9]*[sp]"\):[0-9]*/\1:1e6/g; s/"gexp_per_s":1e6/"gexp_per_s":1/; s/"g2_per_s":1e6/"gexp2_per_s":2/' limits.jsonl >exps.jsonl
check "limits of exponentials" "$dtrain" small.ini run.name=exps log.limits=exps.jsonl >exps.log 2>&1
check "… are the floors of what has them" awk 'function is(op, want) { if (index($0, "\"name\":\"" op "\"")) { rows++; match($0, /"floor_seconds":[^,}]*/)
        got = substr($0, RSTART + 16, RLENGTH - 16); if (got < want * 0.999 || got > want * 1.001) { print op ": " got ", not " want; bad = 1 } } }
    /"lane":"op"/ { n = 12 * 2 * 8 * 48 * 64; is("conv1d_silu_forward", n / 1e9); is("scan_forward", n * (2 / 1e9 + 16 / 2e9)) }
    END { exit bad || rows != 2 }' <(tr -d '\n\t' <runs/exps/profile.json | tr '{' '\n')

# SIGUSR2 by launch/run.sh prints the table while the run continues.
set -m
"$repository/launch/run.sh" -np 2 "$dtrain" small.ini run.name=asked run.steps=100000 optim.warmup_steps=0 log.every=1000 \
    >asked.log 2>&1 &
job=$!
set +m
wait_for_step asked 3
check "no table before it is asked for" test ! -e runs/asked/profile.txt
kill -USR2 "$job"
wait_until test -e runs/asked/profile.txt
check "the table of a run that goes on" adds_up runs/asked/profile.txt
wait_for_step asked $(($(steps_done asked) + 10))
# Each rank prints it when the signal arrives, which may be in different steps.
check "it is written once or twice: $(grep -c 'profile: ' asked.log)" test "$(grep -c 'profile: ' asked.log)" -le 2
kill -USR1 "$job"
wait "$job"
check "run.sh ends with the exit code of the ranks, whatever signals came: $?" test $? -eq 0
check "SIGUSR2 does not stop it" grep -q 'stopped by SIGUSR1' asked.log
finish
