#!/usr/bin/env bash
# dtrain pack and dtrain verify: exit codes, what is printed where, and that nothing is left behind.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"

run() { # wanted exit code, command …
    local want=$1 status
    shift
    "$@" >out.log 2>err.log </dev/null
    status=$?
    check "$*: exit code $status, not $want: $(head -c 300 err.log)" test $status -eq "$want"
}
says() { # description, pattern, file
    check "$1: \"$2\" is not in $(head -c 300 "$3")" grep -Eq -- "$2" "$3"
}
refused() { # pattern, arguments of dtrain …
    local pattern=$1
    shift
    run 2 "$dtrain" "$@"
    says "$*" "$pattern" err.log
    check "$*: nothing on stdout" test ! -s out.log
    check "$*: no output folder" test ! -e new
}

mkdir -p in/sub
printf 'one' >in/1.txt
printf 'two' >in/sub/2.txt
printf '\0\0' >in/3.bin

run 0 "$dtrain" pack -o out --val 0.5 in
says "the summary" 'packed 2 files, vocabulary 256' out.log
says "the summary" 'train +3 tokens in 1 shard: out/train-\*\.h5' out.log
says "the summary" 'val +3 tokens' out.log
check "nothing on stderr, which is not a terminal" test ! -s err.log
cp out/train-00000.h5 out/.hidden.h5
run 0 "$dtrain" verify out
rm out/.hidden.h5
check "one line per shard that is not hidden" test "$(grep -c '^good  out/' out.log)" -eq 2
yes words | head -c 3000000 >large.txt
run 0 "$dtrain" pack -olarge --shard-mb 1 --val 0.25 large.txt
check "shards of either side: $(cat out.log)" cmp -s out.log <(printf '%s\n' 'packed 1 file, vocabulary 256' \
    'train  2250000 tokens in 3 shards: large/train-*.h5' 'val    750000 tokens in 1 shard: large/val-*.h5')
cp out/train-00000.h5 before.h5
refused 'out already contains shards' pack -o out in
check "the old shards stay" cmp -s before.h5 out/train-00000.h5
run 0 "$dtrain" pack --val=0 --force -o out in
check "the new ones replace them all" test "$(echo out/*)" = out/train-00000.h5

refused '--shard-mb: 0 is out of range' pack --shard-mb 0 -o new in
refused '--val: .nan. is not' pack --val nan -o new in
refused '--vocab: -3 is out of range' pack --vocab -3 -o new in
refused 'token 0 is 111, outside the vocabulary of 111' pack --vocab 111 -o new in/1.txt
refused 'absent: No such file' pack -o new absent
refused '3 bytes, not a multiple of 2' pack --format u16 -o new in/1.txt
mkdir binary
cp in/3.bin binary
refused 'nothing to pack in binary \(1 binary or unreadable files skipped' pack -o new binary
refused 'in/1.txt' pack -o in/1.txt/new in
run 0 "$dtrain" pack --help
says "the help" '--shard-mb N' out.log
run 0 "$dtrain" verify --help

# Verify continues after a bad file, and counts them.
mkdir mixed
cp before.h5 mixed/a.h5
head -c 1000 before.h5 >mixed/b.h5
echo text >mixed/c.hdf5
run 2 "$dtrain" verify mixed 'nothing*' out
says "the good one" '^good  mixed/a.h5: 3 tokens, uint8, vocabulary 256, checksums match' out.log
says "the truncated one" '^bad   mixed/b.h5: .*(truncated|HDF5)' out.log
says "the one that is text" '^bad   mixed/c.hdf5 is not an HDF5 file' out.log
says "a pattern without a match" '^bad   nothing\*: nothing matches' out.log
says "those after it" '^good  out/train-00000.h5' out.log
says "the count" '3 of 5 failed' err.log
mkdir hollow
run 2 "$dtrain" verify hollow
says "an empty folder" 'no shards or checkpoints in' out.log

# A full disk (simulated by a limit on file sizes): exit code 3, the old shards intact.
head -c 300000 /dev/zero | tr '\0' x >big.txt
cp out/train-00000.h5 before.h5
run 3 bash -c "trap '' XFSZ; ulimit -f 100; exec '$dtrain' pack --force -o out big.txt"
says "a full disk" 'cannot write out/\.train-00000\.h5\.tmp: File too large' err.log
check "the old shard stays" cmp -s before.h5 out/train-00000.h5
check "nothing half-written is left" test "$(ls -A out)" = train-00000.h5
finish
