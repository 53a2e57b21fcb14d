#!/usr/bin/env bash
# A shard fails during a run, on one rank of two: a read fails or returns a flipped bit, the file is gone when it is
# opened, or libhdf5 crashes on it. The job ends with an error that names rank, file and cause, also in state.json. With
# the shard back the same command resumes and ends with the bits of a run without faults.
#   shards.sh DTRAIN SHARD_TOOL INTERPOSE
shard_tool=$(realpath "$2") library=$3
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
small_run
sed -i 's/^steps = .*/steps = 60/;s/^every = 1$/every = 100/;s/^block = .*/block = 1/' small.ini
"$dtrain" pack --format u8 --val 0 -o flat words.txt >pack.log 2>&1 || { cat pack.log >&2; exit 1; } # without documents
common=(small.ini checkpoint.every=10 run.threads=1 data.val=)
flat=("${common[@]}" data.train=flat/train-00000.h5)
ranks 2 "${flat[@]}" run.name=whole >whole.log 2>&1 || { cat whole.log >&2; exit 1; }

resumes() { # arguments …
    check "$name: the same command completes" ranks 2 "$@" run.name="$name" >again.log 2>&1
    check "$name: … from a checkpoint" grep -q "resuming from runs/$name" again.log
}
ends() { # exit code, pattern of the last words
    wait "$job"
    status=$?
    check "$name: exit code $status, not $1" test $status -eq "$1"
    check "$name: '$(grep -a '^dtrain: error' $name.log)' is not '$2'" grep -qE "^dtrain: error: $2" $name.log
    check "$name: one rank spoke" test "$(grep -ac '^dtrain: error' $name.log)" -eq 1
    check "$name: $(cat runs/$name/state.json)" grep -qE '"state":"failed","step":[1-9][0-9]*,"reason":"rank 1 on ' runs/$name/state.json
}
for what in eio flip; do
    name=$what code=$([ $what = eio ] && echo 3 || echo 2)
    export FAULT="call=read path=flat/train rank=1 at=150 times=0 do=$what" LD_PRELOAD=$library # four reads a step
    start 2 "${flat[@]}" run.name=$name
    unset FAULT LD_PRELOAD
    ends $code "rank 1 on $(uname -n), step [0-9]+, reading data: .*flat/train-00000.h5"
    resumes "${flat[@]}"
    check "$name: … with the right bits" same_bits runs/{$name,whole}/checkpoints/step-00000060
done
check "an I/O error says so" grep -qi 'input/output error' eio.log
check "a flipped bit is found by its checksum" grep -qi 'checksum' flip.log

mkdir mixed
cp flat/train-00000.h5 mixed/a.h5
echo text >mixed/b.h5
ln -s ../flat/train-00000.h5 mixed/c.h5
ln -s nowhere.h5 mixed/d.h5
FAULT="call=read path=mixed/a.h5 at=1 times=0 do=eio" LD_PRELOAD=$library "$dtrain" verify mixed >verify.log 2>&1
check "verify: a file that cannot be read is the machine's failure, whatever comes after it" test $? -eq 3
FAULT="call=read path=mixed/a.h5 at=1 times=0 do=eio" LD_PRELOAD=$library "$dtrain" --check "${common[@]}" data.train='mixed/[ab].h5' >check.log 2>&1
check "… of training's, too: exit code $?" test $? -eq 3
check "… all that are wrong are named, with the first one's hint: $(cat check.log)" awk '/2 of 2 shards cannot be used/ { n++ } /mixed\/a.h5/ { n++ } /mixed\/b.h5/ { n++ } /hint:/ { n = 0 } END { exit n < 3 }' check.log
check "verify: links to shards too: $(cat verify.log)" test "$(grep '^good\|^bad ' verify.log | cut -c 1-16 | tr '\n' ' ')" = \
    "bad   mixed/a.h5 bad   mixed/b.h5 good  mixed/c.h5 bad   mixed/d.h5 "

mkdir -p many
for i in $(seq 10 89); do "$shard_tool" tokens many/$i.h5 1000; done # more than dtrain keeps open
several=("${common[@]}" "data.train=many/*.h5" data.shuffle=false run.steps=150)
check "--check of eighty names eight" test "$("$dtrain" --check "${several[@]}" 2>&1 | grep -cE '^  many/1[0-7].h5|^  … and 72 more$')" -eq 9
ranks 2 "${several[@]}" run.name=eighty >eighty.log 2>&1 || { cat eighty.log >&2; exit 1; }
name=gone
export FAULT="call=write path=runs/gone/metrics at=1 times=0 do=20" LD_PRELOAD=$library # time to remove it
start 2 "${several[@]}" run.name=$name
unset FAULT LD_PRELOAD
check "$name: training is under way" wait_for_step $name 15
mv many/85.h5 away.h5
wait "$job"
status=$?
check "$name: exit code $status" test $status -eq 2 -o $status -eq 3
check "$name: '$(grep -a '^dtrain: error' $name.log)'" grep -qE '^dtrain: error: .*rank [01] on .*many/85.h5.*No such file' $name.log
mv away.h5 many/85.h5
resumes "${several[@]}"
check "$name: … with the right bits" same_bits runs/{gone,eighty}/checkpoints/step-00000150

name=crash
FAULT="call=hdf5 path=tokens rank=1 at=25 do=crash" LD_PRELOAD=$library start 2 "${several[@]}" run.name=$name
ends 3 "rank 1 on $(uname -n), step [0-9]+, .*: libhdf5 crashed \(SIGSEGV\) reading many/[0-9]+.h5"
check "$name: how to look at the file" grep -q 'hint: the file is probably damaged: check it with h5dump' $name.log
resumes "${several[@]}"
check "$name: … with the right bits" same_bits runs/{$name,eighty}/checkpoints/step-00000150

# The same without other ranks, and with a crash outside libhdf5, which is reported as before.
crashes() { # run name, exit code, FAULT
    FAULT=$3 LD_PRELOAD=$library "$dtrain" "${flat[@]}" run.name="$1" run.steps=20 >"$1.log" 2>&1
    status=$?
    check "$1: exit code $status, not $2: $(cat "$1.log")" test $status -eq "$2"
}
crashes alone 3 "call=hdf5 path=tokens_xxh3 at=2 do=crash"
check "alone: $(cat runs/alone/state.json)" grep -q '"state":"failed",.*libhdf5 crashed (SIGSEGV) reading flat/train-00000.h5' runs/alone/state.json
check "alone: one message" test "$(grep -ac '^dtrain: error' alone.log)" -eq 1
crashes outside 139 "call=write path=runs/outside/metrics at=1 do=crash"
check "outside: no word of libhdf5" bash -c '! grep -q libhdf5 outside.log'
finish
