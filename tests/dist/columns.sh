#!/usr/bin/env bash
# columns.sh DTRAIN GAME: columns of other rows, a table that id columns share, weights and missing targets have the
# same losses on any ranks and in any micro-batches, and the same bits after a resume. Other columns are refused by
# name, and doubtful ones cause a warning. tests/golden/columns.py computes such losses with PyTorch.
game=$(realpath "$2")
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
targets="targets/buttons@+2 targets/main_x@+2 targets/main_y@+2 targets/c_x@-1 targets/c_y@+40 targets/shoulder@-39"
game_policy "$game" columns.ini data.weights='targets/c_x targets/c_y:buttons' data.targets="$targets" \
    data.inputs='frames@-1:1:valid targets/main_x:id*17=axis@-1 targets/main_y:id*17=axis@-1'
last=checkpoints/step-00000008
for variant in "1" "2 data.micro_batch=2" "4"; do
    read -ra words <<<"$variant"
    check "trains on $variant" ranks "${words[0]}" columns.ini "${words[@]:1}" run.name="n${words[0]}" >"n${words[0]}.log" 2>&1
    # fp32 sums in another order.
    check "losses on $variant" same_losses runs/n1/metrics.jsonl "runs/n${words[0]}/metrics.jsonl" 1e-6
done
check "no loss is missing" test "$(grep -c '"loss":null' runs/n1/metrics.jsonl)" = 0
check "saves" "$dtrain" columns.ini run.name=cut checkpoint.every=4 >cut.log 2>&1
rm -r runs/cut/$last
same=$(sed 's/@+/@/g; s/targets/\/targets/' <<<"$targets")
check "resumes with other words for the same columns" "$dtrain" columns.ini run.name=cut data.targets="$same" \
    data.weights='/targets/c_x[0]  targets/c_y[0:1]:buttons' >cut.log 2>&1
check "the bits are those of the whole run" same_bits runs/cut/$last runs/n1/$last
check "eval" "$dtrain" eval columns.ini run.name=n1 >eval.json 2>eval.log
check "eval has the loss of training's validation" test "$(grep -o '"loss":[0-9.]*' eval.json | head -n 1 | cut -c1-16)" = \
    "$(grep '"event":"eval"' runs/n1/metrics.jsonl | tail -n 1 | grep -o '"loss":[0-9.]*' | head -n 1 | cut -c1-16)"
check "predictions need no weights" "$dtrain" predict columns.ini run.name=n1 data.weights=absent -o predictions.h5 >predict.log 2>&1
check "trains without weights" "$dtrain" columns.ini run.name=even run.steps=1 data.weights= >even.log 2>&1
check "… with another loss" test "$(first_loss even)" != "$(first_loss n1)"

check "--check prints the columns" "$dtrain" --check columns.ini >plan.txt 2>plan.log
check "… in full, with shifts, tables and weights" grep -qF "inputs frames[0:24]@-1:1:valid \
targets/main_x[0:1]:id*17=axis@-1 targets/main_y[0:1]:id*17=axis@-1; targets targets/buttons[0:8]@+2 targets/main_x[0:1]@+2 \
targets/main_y[0:1]@+2 targets/c_x[0:1]@-1 targets/c_y[0:1]@+40 targets/shoulder[0:1]@-39; weights targets/c_x" plan.txt
check "… and warns of nothing" test "$(grep -c warning plan.log)" = 0
check "--check with a stride" "$dtrain" --check columns.ini data.stride=5 >plan.txt 2>plan.log # 2 x (24 + a flag) numbers
check "… has the length of windows" grep -q '^training data: .* windows of 40$' plan.txt
check "… and where they start" grep -q 'a window every 5 frames (data.stride); a frame has 50 values and 2 ids (tables of 17, 17), the targets 13$' plan.txt
check "one table has both id columns" grep -q '"ids":.*"17=axis 17=axis"' runs/n1/$last/config.json

ini=columns.ini
other="frames@-1:1:valid targets/main_x:id*17=axis@-2 targets/main_y:id*17=axis@-1"
changed='word 2 is targets/main_x\[0:1\]:id\*17=axis@-2, the model has targets/main_x\[0:1\]:id\*17=axis@-1'
refused "resuming with other inputs" "data.inputs: $changed" "$dtrain" columns.ini run.name=n1 run.steps=9 data.inputs="$other"
refused "positions of frames" "positions is for language models" "$dtrain" eval columns.ini run.name=n1 --positions
refused "documents of frames" "documents is for language models" "$dtrain" eval columns.ini run.name=n1 --documents
refused "eval with other inputs" "data.inputs: $changed" "$dtrain" eval columns.ini run.name=n1 data.inputs="$other"
refused "resuming with other weights" 'data.weights is targets/c_x, the checkpoint has targets/c_x targets/c_y:buttons' \
    "$dtrain" columns.ini run.name=n1 run.steps=9 data.weights=targets/c_x
refused "resuming with other targets" 'data.targets: word 1 is targets/buttons\[0:8\]@\+3, the model has targets/buttons\[0:8\]@\+2' \
    "$dtrain" columns.ini run.name=n1 run.steps=9 data.targets="${targets/@+2/@+3}"
check "a run that differs from the defaults in what may not change" "$dtrain" columns.ini run.name=own run.steps=1 data.val= data.val_fraction=0.25 \
    data.stride=7 >own.log 2>&1
for recorded in '"stride":\s*7,' '"val_fraction":\s*0.25,'; do
    check "… its checkpoint records $recorded" grep -qE "$recorded" runs/own/checkpoints/step-00000001/trainer.json
done
check "weights of a run with other columns" "$dtrain" columns.ini run.name=tuned run.steps=1 run.init_from=runs/n1/$last \
    data.inputs="$other" >tuned.log 2>&1
check "… say so" grep -qE "other columns: ${changed/the model has/was}" tuned.log

again() { # what the log of a run or of verify says
    grep -c 'data.[a-z]*: an earlier run has checked every value (runs/.checked)' "$1.log"
}
check "values are checked" test "$(again n1)" = 0
check "… once, on any ranks" test "$(again n2) $(again n4)" = "2 2"
check "trains on one file, where an earlier run had them all" "$dtrain" columns.ini run.name=fewer run.steps=1 \
    data.train="$(ls data/train-*.h5 | head -n 1)" >fewer.log 2>&1
check "… which alone is read" test "$(grep -o 'data.[a-z]*: an earlier run' fewer.log)" = "data.val: an earlier run"
check "verify reads them again" "$dtrain" verify columns.ini >verify.log 2>&1
check "… and says so" test "$(again verify)" = 0
rejected 'targets/c_y\[0:1\]@\+5000 targets/shoulder\[0:1\]@\+5000: all targets of data.train are missing, since its longest episode has [0-9]* rows: there is nothing to learn' \
    data.targets="$(printf 'targets/%s@5000 ' buttons main_x main_y c_x c_y shoulder)"
longest=$(sed -n 's/.*longest episode has \([0-9]*\) rows.*/\1/p' refused.log)
check "some heads without targets" "$dtrain" columns.ini run.name=some run.steps=1 data.targets="${targets/@-39/@5000}" >some.log 2>&1
check "… are warned of" grep -q 'all targets of data.train are missing for some heads, which have no loss: shoulder' some.log
rejected "there is no head 'button': did you mean 'buttons'" data.weights=targets/c_x:button
rejected 'targets/buttons has 8 columns; a weight \(data.weights\) is one number' data.weights=targets/buttons
rejected 'is not a weight \(data.weights\)' 'data.weights=frames[0]'
rejected "'frames@1:1' is not understood: @FROM:TO means FROM to TO - 1" data.inputs=frames@1:1
check "… once for all shards" test "$(grep -c 'is not understood' refused.log)" = 1
late="frames@$((longest - 1)):$((longest + 1)) targets/main_x:id*17@-$longest"
check "inputs past every episode" "$dtrain" --check columns.ini data.inputs="$late" >plan.txt 2>plan.log
check "… are warned of once" test "$(grep -c "data.inputs: frames\[0:24\]@+$longest targets/main_x\[0:1\]:id\*17@-$longest is zero in every frame: the longest episode of data.train has $longest rows" plan.log)" = 1
check "targets among the inputs" "$dtrain" --check columns.ini data.inputs='frames targets/buttons@0:4' >plan.txt 2>plan.log
check "… are warned of once" test "$(grep -c 'targets/buttons\[0\]@+2 is an input of the same frame, too' plan.log)" = 1
check "windows that are padding" "$dtrain" --check columns.ini data.seq_len=2000 data.batch=2 >plan.txt 2>plan.log
read -r frames windows < <(sed -n 's/^training data: .* (episodes), \([0-9]*\) frames, \([0-9]*\) windows.*/\1 \2/p' plan.txt)
check "… are warned of once: $(cat plan.log)" test "$(grep -c "$((100 - (frames + 320) / 640)) % of what is trained is padding: the 32 episodes \
of data.train have $(((frames + 31) / 32)) frames on average, windows data.seq_len = 2000" plan.log)" = 1
check "verify" "$dtrain" verify columns.ini >verify.txt
check "… counts frames whose targets a shift takes beyond either end: $(cat verify.txt)" test 4 -eq \
    "$(grep -c "episodes: 8, .*, frames with a target missing: $(((40 + 39) * 8)), no checksums, data.train\$" verify.txt)"
check "padding trains" "$dtrain" columns.ini run.name=padding data.seq_len=2000 data.batch=2 run.steps=1 >padding.log 2>&1
check "… and throughput counts frames alone" awk -v frames="$frames" -v windows="$windows" -F'[:,]' '
    /"event":"train"/ { for (i = 1; i < NF; i++) { if ($i == "\"tokens\"") tokens = $(i + 1)
                            if ($i == "\"tokens_per_s\"") rate = $(i + 1); if ($i == "\"step_ms\"") ms = $(i + 1) } }
    END { want = 2 * frames / windows; got = rate * ms / 1000
          exit !(windows == 32 && want < 2000 && tokens == 4000 && got > want * (1 - 1e-6) && got < want * (1 + 1e-6)) }' \
    runs/padding/metrics.jsonl
check "… but padding costs operations" awk -v frames="$frames" -v windows="$windows" '
    { want = 1e-3 * $3 * $1 * 2000 * windows / frames; off = $2 > want ? $2 - want : want - $2 }
    END { exit !(NR == 1 && off < 0.05 + 0.1 * want) }' <<<"$(sed -n 's|.* \([0-9]*\) frames/s  \([0-9.]*\) GFLOP/s.*|\1 \2|p' padding.log) \
        $(sed -n 's|.* \([0-9.]*\) MFLOP per frame.*|\1|p' plan.txt)"
for weights in '' targets/c_y targets/c_y:buttons; do
    "$dtrain" eval columns.ini run.name=n1 data.weights="$weights" 2>eval.log >eval.json
    sed 's/.*"buttons":{\([^}]*\).*"main_x":{\([^}]*\).*/\1 \2/; s/"loss":[^,]*,"accuracy":[^,]*,//g; s/"confusion".*//' eval.json
done >scores.txt
check "scores have the weights of their head, and no other: $(cat scores.txt)" awk '{ buttons[NR] = $1; x[NR] = $2 }
    END { exit !(NR == 3 && $2 ~ /auc/ && buttons[1] != buttons[2] && buttons[3] == buttons[2] && x[1] != x[2] && x[3] == x[1]) }' scores.txt
finish
