#!/usr/bin/env bash
# faults.sh DTRAIN MAKE_EPISODES INTERPOSE: predictions continue after a kill, also on another number of ranks, with the
# same bits. A disk that is too small causes one message and exit code 3. Files of other predictions are refused.
make_episodes=$(realpath "$2") interpose=$(realpath "$3")
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
policy_ini policy.ini run.steps=4 model.d_model=16 model.n_layer=1 data.inputs=obs/a data.targets=actions data.val_mask=all
"$make_episodes" robomimic train.h5 0 13
cp train.h5 val.h5
"$make_episodes" robomimic changed.h5 0 13 data/demo_3/obs/a 2 0.5
for name in a b; do
    "$dtrain" policy.ini run.name=$name run.seed=$(printf %d "'$name") >train.log 2>&1 || cat train.log >&2
done
"$dtrain" predict runs/a -o whole.h5 >whole.log 2>&1

# The first 70 writes to the file create it, the next 104 are predictions, and the 7 after them mark groups as done.
with_fault() { # fault, output: predicts a; both outputs are in fault.log
    FAULT="call=put path=$2.part $1" LD_PRELOAD=$interpose "$dtrain" predict runs/a -o "$2" >fault.log 2>&1
}
if ! is_sanitized; then # which must be loaded first
    for at in 80 140 176; do
        with_fault "at=$at do=kill" killed.h5
        check "killed at write $at" test $? -ne 0
        check "… there is no output" test ! -e killed.h5 -a -e killed.h5.part
        refused "… and another model may not continue it" 'killed.h5.part holds part of other predictions' \
            "$dtrain" predict runs/b -o killed.h5
        check "… the same command continues" ranks 2 predict runs/a -o killed.h5 >killed.log 2>&1
        check "… and says so" grep -q 'continuing killed.h5.part' killed.log
        check "… with the bits of the whole" cmp killed.h5 whole.h5
        check "… and nothing is left" test ! -e killed.h5.part
        rm -f killed.h5
    done
    # Anything that the numbers depend on.
    with_fault "at=140 do=kill" other.h5
    FAULT="call=put path=drawn.h5.part at=140 do=kill" LD_PRELOAD=$interpose "$dtrain" predict runs/a --draw -o drawn.h5 >fault.log 2>&1
    for change in other.h5:{--hidden,--draw,data.seq_len=8,run.precision=bf16,data.val=changed.h5} \
        drawn.h5:{,"--draw --seed 2","--draw --temperature 2"}; do
        # shellcheck disable=SC2086 # words
        refused "… of $change" "${change%%:*}.part holds part of other predictions" "$dtrain" predict runs/a ${change#*:} -o "${change%%:*}"
    done
    small_run
    check "tokens without document starts" "$dtrain" pack -o raw --val 0.1 --format u8 words.txt >raw.log 2>&1
    check "a language model" "$dtrain" small.ini data.{train=raw/train-00000.h5,val=raw/val-00000.h5} data.reset_token=10 \
        run.name=tokens run.steps=4 >tokens.log 2>&1
    FAULT="call=put path=tokens.h5.part at=9 do=kill" LD_PRELOAD=$interpose "$dtrain" predict runs/tokens -o tokens.h5 >fault.log 2>&1
    for change in data.reset_{token=-1,token=32,after=true}; do
        refused "… of $change" "tokens.h5.part holds part of other predictions" "$dtrain" predict runs/tokens $change -o tokens.h5
    done
    sed -i 's/logits/logitz/g' other.h5.part
    refused "a file without an array" 'other.h5.part is damaged: it has no /data/demo_[0-9]*/.*/logits' "$dtrain" predict runs/a -o other.h5
    rm other.h5.part drawn.h5.part
    with_fault "at=30 do=kill" killed.h5
    check "killed while the file is created: there is no output" test ! -e killed.h5
    check "… the same command starts again" "$dtrain" predict runs/a -o killed.h5 >killed.log 2>&1
    check "… with the bits of the whole" cmp killed.h5 whole.h5
    FAULT="call=put,fsync,rename" FAULT_LOG=$PWD/last.log LD_PRELOAD=$interpose "$dtrain" predict runs/a -o last.h5 >fault.log 2>&1
    check "the file, its name and its folder last: $(cat last.log)" test "$(sed 's/^[0-9]* //; s|/.*/| |' last.log | tail -n 3 | tr -s '\n ' ' ')" = \
        "fsync last.h5.part rename last.h5 fsync ${PWD##*/} "
    check "… and what is marked was written" test "$(cut -d' ' -f2 last.log | uniq | tail -n 8 | xargs)" = "put fsync put fsync put fsync rename fsync"
    # Groups that are marked are not computed again: all except one.
    with_fault "at=175 do=kill" marked.h5
    FAULT_LOG=$PWD/calls.log with_fault at=0 marked.h5
    check "a group is marked: $(grep -c put calls.log) writes after it" test "$(grep -c put calls.log)" -lt 120
    check "… with the bits of the whole" cmp marked.h5 whole.h5
    with_fault "at=71 times=0 do=50" slow.h5
    check "slow predictions say how far they are: $(cat fault.log)" awk '/^dtrain: predicted [0-9]* %, about [0-9]* s left$/ {
        n++; bad += $3 <= last || $3 > 99; last = $3 } END { exit bad || n == 0 }' fault.log
    with_fault "at=90 do=enospc" space.h5
    check "a disk that is full meanwhile: exit code $?, not 3" test $? -eq 3
    check "… one message: $(cat fault.log)" test "$(grep -c '^dtrain: error: cannot write space.h5.part: No space left' fault.log)" = 1
    check "… the same command continues" "$dtrain" predict runs/a -o space.h5 >space.log 2>&1
    check "… with the bits of the whole" cmp space.h5 whole.h5
fi

limited 16 predict runs/a -o full.h5 >full.log 2>&1
check "a full disk: exit code $?, not 3" test $? -eq 3
check "a full disk: one message: $(cat full.log)" test "$(grep -c '^dtrain: error' full.log)" = 1
check "a full disk: why" grep -qE 'full.h5.part: File too large' full.log
check "a full disk: nothing is left" test ! -e full.h5 -a ! -e full.h5.part
check "with space again" "$dtrain" predict runs/a -o full.h5 >full.log 2>&1
check "… the bits of the whole" cmp full.h5 whole.h5

echo text >other.h5.part
check "a file that is no predictions is replaced" "$dtrain" predict runs/a -o other.h5 >other.log 2>&1
check "… with the bits of the whole" cmp other.h5 whole.h5
finish
