#!/usr/bin/env bash
# The tokenizer travels: its files are in every checkpoint and its special tokens in config.json, also after
# run.init_from. Shards of another tokenizer are refused.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
small_run
tokenizer() { # folder, what makes it another
    mkdir -p "$1"
    echo '{"version":"1.0","added_tokens":[{"id":3,"content":"<end>","special":true}],"model":{"type":"BPE","vocab":{"a'"$2"'":1,"<begin>":2},"merges":[]}}' \
        >"$1/tokenizer.json"
    echo '{"bos_token":"<begin>","eos_token":{"content":"<end>"}}' >"$1/tokenizer_config.json"
    printf 'model\0bytes' >"$1/tokenizer.model"
}
tokenizer mine ""
tokenizer other x
pack() { # folder, options …
    check "pack into $1" "$dtrain" pack -o "$1" --val 0.1 "${@:2}" text >>pack.log 2>&1
}
pack stamped --tokenizer mine
pack foreign --tokenizer other
same_files() { # checkpoint
    for file in tokenizer.json tokenizer_config.json tokenizer.model; do cmp "mine/$file" "$1/$file" || return 1; done
}
special() { # checkpoint, member, value
    grep -qE "\"$2\":[[:space:]]*$3,?$" "$1/config.json"
}
bare=(run.steps=2 log.tensorboard=false)
run=("$dtrain" small.ini "${bare[@]}" data.val=)

sed -i 's/^train = .*//; s/^val = .*//' small.ini
check "a run with its tokenizer" "${run[@]}" data.train='stamped/train-*.h5' data.tokenizer=mine run.name=first >first.log 2>&1
at=runs/first/checkpoints/step-00000002
check "its files are in the checkpoint" same_files $at
check "… and in its MANIFEST" test "$(grep -c ' tokenizer' $at/MANIFEST)" -eq 3
check "… which verifies" "$dtrain" verify $at >verify.log 2>&1
check "bos" special $at bos_token_id 2
check "eos" special $at eos_token_id 3
check "no pad" special $at pad_token_id null
check "a run from it" "${run[@]}" data.train='stamped/train-*.h5' run.init_from=$at run.name=second >second.log 2>&1
check "keeps the files" same_files runs/second/checkpoints/step-00000002
check "keeps eos" special runs/second/checkpoints/step-00000002 eos_token_id 3
check "a resumed run" "$dtrain" small.ini data.val= data.train='stamped/train-*.h5' run.steps=3 run.name=second >third.log 2>&1
check "keeps them, too" same_files runs/second/checkpoints/step-00000003

while IFS='|' read -r train words pattern; do
    # shellcheck disable=SC2086 # words are several arguments
    refused "data.train = $train $words" "$pattern" "${run[@]}" run.name=refused data.train="$train" $words
done <<END
foreign/train-*.h5|data.tokenizer=mine|foreign/train-00000.h5 has tokens of another tokenizer .* than mine
foreign/train-*.h5|run.init_from=$at|foreign/train-00000.h5 has tokens of another tokenizer .* than $at
foreign/train-*.h5,stamped/train-*.h5||stamped/train-00000.h5 has tokens of another tokenizer .* than foreign/train-00000.h5
stamped/train-*.h5|data.tokenizer=none|none/tokenizer.json
END
refused "data.val = foreign/val-*.h5" 'foreign/val-00000.h5 has tokens of another tokenizer .* than stamped/train-00000.h5' \
    "${run[@]/#data.val=/data.val=foreign/val-*.h5}" run.name=refused data.train='stamped/train-*.h5'
printf '{"added_tokens":' >other/tokenizer.json
refused "a damaged tokenizer.json" "other/tokenizer.json" "${run[@]}" run.name=refused data.train='data/train-*.h5' data.tokenizer=other
tokenizer other x
echo '{"eos_token":"<stop>"}' >other/tokenizer_config.json
refused "a special token that is not there" "other: its eos_token is '<stop>', which tokenizer.json does not have" \
    "${run[@]}" run.name=refused data.train='data/train-*.h5' data.tokenizer=other
sed -i 's/"id":3/"id":1e300/; s/<end>/<stop>/' other/tokenizer.json
refused "an id that is none" "other: its eos_token is '<stop>', which tokenizer.json does not have" \
    "${run[@]}" run.name=refused data.train='data/train-*.h5' data.tokenizer=other
sed -i 's/"id":1e300/"id":300/' other/tokenizer.json
refused "a special token outside the vocabulary" "data.tokenizer: its special token 300 is outside the model's vocabulary of 256" \
    "${run[@]}" run.name=refused data.train='data/train-*.h5' data.tokenizer=other
finish
