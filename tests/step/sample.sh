#!/usr/bin/env bash
# dtrain sample continues its own text: a prompt that ends with what it generated gives what followed. If a model's
# outputs are not finite, the exit code is 3 and the message names the position.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh" "$1"

small_run
"$dtrain" small.ini run.dir=run run.device=cpu run.threads=1 >train.log 2>&1 || cat train.log
sample() { # prompt, tokens
    "$dtrain" sample run --prompt "$1" --tokens "$2" --temperature 0 --device cpu 2>error.txt | od -An -v -tu1 | tr -s ' \n' ' '
}
whole=$(sample "int a" 12)
check "five bytes, twelve more and a line's end: $whole" [ "$(wc -w <<<"$whole")" = 18 ]
for n in 4 8; do
    start=$(cut -d' ' -f-$((n + 6)) <<<"$whole") # the text begins with a blank
    prompt=$(printf "$(printf '\\%03o' $start)x")
    check "the same text from its byte $((n + 5)) on: $start" [ "$(sample "${prompt%x}" $((12 - n)))" = "$whole" ]
done
# If the vocabulary is not bytes, prompts are ids. The default prompt, a newline, is token 0.
"$dtrain" small.ini run.dir=ids run.device=cpu run.steps=1 optim.warmup_steps=0 model.vocab_size=20 data.train=synthetic:random data.val= >train.log 2>&1 || cat train.log
for prompt in "" "3 15"; do
    ids=$("$dtrain" sample ids --tokens 3 --device cpu ${prompt:+--prompt "$prompt"} 2>&1)
    check "a prompt of ${prompt:-0} and three ids: $ids" grep -qE "^${prompt:-0} ([0-9]+ ){3}$" <<<"$ids"
done
code=0
"$dtrain" sample ids --tokens 1 --device cpu --prompt "19 20" >out.txt 2>error.txt || code=$?
check "a token past the vocabulary: $code, $(cat error.txt)" eval '[ $code -eq 2 ] && grep -q "\"20\" does not begin with a token id below 20" error.txt'
# Each token is written when it is drawn, not when a buffer or a line is full.
"$dtrain" sample ids --tokens 100000000 --device cpu >stream.txt 2>error.txt &
check "text as it is generated" wait_until eval '[ $(($(stat -c %s stream.txt) % 512)) -ne 0 ]'
kill -KILL $!
wait $! 2>/dev/null
# Options: each excludes what it says. Several prompts give what they give separately. A text ends before what ends it.
ids() { "$dtrain" sample ids --tokens 60 --device cpu "$@" 2>&1; }
check "top-k 1 is the most likely" [ "$(ids --prompt 3 --top-k 1)" = "$(ids --prompt 3 --temperature 0)" ]
check "top-p 1e-9 and min-p 1 are, too" [ "$(ids --prompt 3 --top-p 1e-9) $(ids --prompt 3 --min-p 1)" = \
    "$(ids --prompt 3 --temperature 0) $(ids --prompt 3 --temperature 0)" ]
distinct() { ids --prompt 3 --tokens 18 --temperature 0 "$@" | tr ' ' '\n' | grep . | sort -u | wc -l; }
check "a penalty of 100: more tokens, $(distinct) and $(distinct --repetition-penalty 100)" \
    [ "$(distinct --repetition-penalty 100)" -gt "$(distinct)" ]
check "the same seed, the same text" [ "$(ids --prompt 3 --seed 5)" = "$(ids --prompt 3 --seed 5)" ]
check "another seed, another text" [ "$(ids --prompt 3 --seed 5)" != "$(ids --prompt 3 --seed 6)" ]
several="== 1 ==
$(ids --prompt "3 7 1" --seed 5)
== 2 ==
$(ids --prompt 9 --seed 6)"
check "two prompts at once: the same texts" [ "$(ids "3 7 1" 9 --seed 5)" = "$several" ]
many=(3 9 1 2 4 5 6 7 8 0) # more prompts than are computed together
alone=$(for i in "${!many[@]}"; do echo "== $((i + 1)) ==" && ids --prompt "${many[i]}" --seed $((5 + i)) --repetition-penalty 3; done)
check "ten prompts at once, each with the penalty of its own tokens" [ "$(ids "${many[@]}" --seed 5 --repetition-penalty 3)" = "$alone" ]
text=$(ids --prompt 3 --seed 5)
end=$(cut -d' ' -f6 <<<"$text")
check "it ends before token $end" grep -qE "^$(cut -d' ' -f1-5 <<<"$text" | sed -E "s/ $end .*//")" <(ids --prompt 3 --seed 5 --stop-tokens "$end")
check "no $end after the prompt" [ "$(ids --prompt 3 --seed 5 --stop-tokens "$end" | cut -d' ' -f2- | tr ' ' '\n' | grep -cx "$end")" = 0 ]
pair=$(cut -d' ' -f6,7 <<<"$text")
check "it ends before $pair" [ "$(ids --prompt 3 --seed 5 --stop "$pair")" = "$(sed -E "s/^(3 .*?)$pair .*/\1/" <<<"$(cut -d' ' -f1-7 <<<"$text") ")" ]
bytes=$("$dtrain" sample run --prompt "int a" --tokens 12 --temperature 0 --device cpu 2>&1)
check "bytes end before a text" [ "$("$dtrain" sample run --prompt "int a" --tokens 12 --temperature 0 --device cpu --stop "${bytes:8:2}" 2>&1)" = "${bytes:0:8}" ]
check "… which may come at once" [ "$("$dtrain" sample run --prompt "int a" --tokens 12 --temperature 0 --device cpu --stop "${bytes:5:2}" 2>&1)" = "${bytes:0:5}" ]
refused() { # options, then the message
    code=0
    ids "${@:1:$#-1}" >out.txt || code=$?
    check "${*:1:$#-1}: $code, $(cat out.txt)" eval "[ $code -eq 2 ] && grep -q -e '${*: -1}' out.txt"
}
refused --top-k -1 'top-k'
refused --top-p 0 'top-p'
refused --min-p 1.5 'min-p'
refused --repetition-penalty 0 'repetition-penalty'
refused --stop-tokens 20 'does not begin with a token id below 20'
refused --stop x 'does not begin with a token id below 20'
refused 3 4 --prompt 5 'both given'
overflowing run/checkpoints/step-* large
code=0
"$dtrain" sample large --prompt int --tokens 2 --device cpu >out.txt 2>error.txt || code=$?
check "exit code $code" [ $code -eq 3 ]
check "the output: $(cat error.txt)" grep -qE 'number [0-9]+ of "residual" of stream 0 is ' error.txt
check "its position" grep -q 'generating the token at position 3' error.txt
check "no token: $(cat out.txt)" [ "$(cat out.txt)" = int ]
finish
