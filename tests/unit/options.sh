#!/usr/bin/env bash
# For every option of every subcommand, the default is the one that --help and this table state, and another value
# changes what the command prints. An option without a row is a failure. $2 is the tool that writes episodes.
make_episodes=$(realpath "$2")
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh" "$1"
small_run
"$dtrain" small.ini run.name=run run.steps=4 run.device=cpu optim.ema=0.9 model.d_model=16 data.block=1 >train.log 2>&1 ||
    { cat train.log >&2; exit 1; }
"$make_episodes" robomimic episodes.h5 0 13
sed -e 's/^vocab_size.*/heads = a:bernoulli*2 b:categorical*5/' -e "s/^\(train\|val\) = .*/\1 = episodes.h5/" \
    -e 's/^seq_len.*/inputs = obs\/a\ntargets = actions\nseq_len = 16/' small.ini >policy.ini
"$dtrain" policy.ini run.name=policy run.device=cpu >train.log 2>&1 || { cat train.log >&2; exit 1; }
yes 'many words' | head -c 1200000 >large.txt
mkdir mine && echo '{}' >mine/tokenizer.json
one=text/$(ls text | head -n 1)
{ echo '>chr1' && echo ACGTac && head -c 100 /dev/zero | tr '\0' N && echo gt; } >dna.fa
echo 'chr1 2 9' >dna.bed

# What each command gets besides the option, and which of its results must not change by chance.
pack() { rm -rf packed && "$dtrain" pack -o packed "$@" text && (cd packed && sha256sum ./*); }
pack_large() { rm -rf packed && "$dtrain" pack -o packed "$@" large.txt && (cd packed && sha256sum ./*); }
pack_raw() { rm -rf packed && "$dtrain" pack -o packed --format u8 "$@" "$one" && (cd packed && sha256sum ./*); }
pack_again() { "$dtrain" pack -o packed "$@" text; }
pack_to() { rm -rf packed && "$dtrain" pack "$@" text && ls packed; }
pack_task() { rm -rf packed && "$dtrain" pack -o packed --rows 30 "$@" mqar && (cd packed && sha256sum ./*); }
pack_dna() { rm -rf packed && "$dtrain" pack -o packed --format fasta "$@" dna.fa && (cd packed && sha256sum ./*); }
pack_rows() { rm -rf packed && "$dtrain" pack -o packed "$@" --length 8 induction && (cd packed && sha256sum ./*); }
isolation() { "$dtrain" verify "$@" small.ini; }
order() { "$dtrain" order small.ini "$@"; }
evaluate() { "$dtrain" eval small.ini run.name=run run.device=cpu optim.ema=0.9 model.d_model=16 "$@"; }
predict_to() { rm -f predicted.h5 && "$dtrain" predict runs/run "$@"; }
predict() { predict_to -o predicted.h5 "$@" && sha256sum predicted.h5; }
predict_again() { "$dtrain" predict runs/run -o words.txt "$@"; }
predict_policy() { rm -f predicted.h5 && "$dtrain" predict runs/policy -o predicted.h5 "$@" && sha256sum predicted.h5; }
predict_drawn() { predict_policy --draw "$@"; }
sample() { "$dtrain" sample runs/run "$@"; }
sample_long() { sample --tokens 4000 "$@"; } # with so many tokens some are X, on any CPU
export_model() { rm -rf exported && "$dtrain" export runs/run exported "$@" && (cd exported && sha256sum ./*); }
bench() { # arguments …: the fields that name what was measured
    "$dtrain" bench --json --seconds 0.001 "$@" | grep -v '"bench":"machine"' |
        sed -E 's/,"([a-z0-9_]+_(ms|us|mfu|ratio)|[a-z_]*per_s[a-z_]*|m?s|gflops|mfu|gb_per_s|bound|fraction|repeats|steps|last_step|loss|peak_memory_mb|graphs|iterations|exps|name)":[^,}]*//g'
}
size=(--d-model 8 --n-layer 1 --seq-len 8 --batch 2 --vocab 16 --d-state 2 --threads 1 --device cpu --precision fp32)
without() { # option, arguments …: the arguments without it and its value, in `kept`
    local option=$1
    shift
    kept=()
    while [ $# -gt 0 ]; do
        [ "$1" = "$option" ] && shift || kept+=("$1")
        shift
    done
}
step() { bench --step "${size[@]}" "$@"; }
ops() { bench "${size[@]}" "$@"; }
play() { without --batch "${size[@]}" && without --device "${kept[@]}" && bench --play "${kept[@]}" "$@"; }
with_default() { # option, mode …: the size that `step` has by default
    local option=$1
    shift
    without "$option" "${size[@]}"
    bench --step "${kept[@]}" "$@"
}
for option in d-model n-layer seq-len batch vocab d-state threads device precision; do
    eval "step_${option//-/_}() { with_default --$option \"\$@\"; }"
done
policy() { play --heads 'a:bernoulli*2' "$@"; }
named() { without --vocab "${size[@]}" && bench --step "${kept[@]}" "$@"; }
collective() { bench --comm --last 64 --max-memory 1 "$@"; }
collectives() { bench --comm --max-memory 1 --collective broadcast --first 64K "$@"; }
as_text() { "$dtrain" bench --step "${size[@]}" --seconds 0.001 "$@" | head -c 1; }
mode() { bench --d-model 8 --n-layer 1 --seq-len 8 --vocab 16 --precision fp32 "$@" | cut -c1-15 | sort -u; } # which benchmark ran

# Command, option, its default (required; false: a flag), another value (-: a flag's presence), how to see it. "time": it
# changes only how long things take, or what is done with larger models, so that its default alone is checked, against --help.
cat >table <<'EOF'
pack output required packed pack_to
pack format text u8 pack
pack shard-mb 64 1 pack_large
pack val 0.05 0.5 pack
pack vocab auto 300 pack
pack vocab auto 300 pack_raw
pack tokenizer '' mine pack
pack seed 1337 1 pack
pack bed '' dna.bed pack_dna
pack max-n 100 99 pack_dna
pack soft-masked keep n pack_dna
pack force false - pack_again
pack rows 100000 1000 pack_rows
pack length auto 256 pack_task
pack items auto 8 pack_task
verify isolation false - isolation
order steps required 1:2 order
eval ema false - evaluate
eval positions false - evaluate
eval documents false - evaluate
predict output required predicted.h5 predict_to
predict data '' data/train-00000.h5 predict
predict check false - predict
predict draw false - predict_policy
predict temperature 1 0 predict_drawn
predict seed 1337 1 predict_drawn
predict hidden false - predict
predict ema false - predict
predict force false - predict_again
sample prompt \n a sample
sample tokens 400 5 sample
sample temperature 0.8 0 sample
sample top-k 0 1 sample
sample top-p 1 0.1 sample
sample min-p 0 1 sample
sample repetition-penalty 1 100 sample
sample stop '' X sample_long
sample stop-tokens '' 88 sample_long
sample seed 1337 1 sample
sample ema false - sample
sample device auto cuda sample
export int8 false - export_model
export bf16 false - export_model
export shard-mb 0 1 time
export official false - export_model
export ema false - export_model
bench step false - mode
bench play false - mode
bench reader false - time
bench comm false - time
bench model custom 130m named
bench d-model 256 8 step_d_model
bench n-layer 4 1 step_n_layer
bench layers '' gru*2 step
bench heads a_language_model a:bernoulli*2 step
bench frame-size 64 9 policy
bench seq-len 512 8 step_seq_len
bench batch 16 2 step_batch
bench micro-batch 0 1 step
bench vocab 256 16 step_vocab
bench d-state 16 2 step_d_state
bench device auto cuda step_device
bench precision auto fp32 step_precision
bench recompute none block step
bench cuda-graph auto true time
bench threads 0 1 step_threads
bench seconds auto 1 time
bench int8 false - play
bench warm false - time
bench first 8 16 collective
bench last 1G 128K collectives
bench factor 2 4 collective
bench collective all broadcast collective
bench type fp32 fp64 collective
bench pairs false - collective
bench max-memory 0 1 time
bench json false - as_text
EOF
# The value of auto depends on the CPU.
! step_precision --precision auto | grep -q '"precision":"fp32"' || sed -i 's/^bench precision auto .* /bench precision auto bf16 /' table

result() { # function, arguments …: its output and its exit code
    "$@" 2>error.txt </dev/null
    echo "exit code $?"
}
words() { tr '\n' ' ' | tr -s ' '; }
while read -r command option default other how; do
    [ "$default" != "''" ] || default=
    help=$("$dtrain" "$command" --help | sed -n "/^  \(-[a-z], \)\{0,1\}--$option\( \|\$\)/,/^  -/{//!p;/--$option\( \|\$\)/p}" | words)
    case $default in
    required) says="(required)" ;;
    false | '') says= ;;
    '\n') says="default: a newline" ;;
    *_*) says="default: ${default//_/ }" ;;
    *) says="default: $default)" ;;
    esac
    check "$command --$option is not in --help with '$says': $help" grep -qF -- "$says" <<<"${help:?$option}"
    [ -n "$says" ] || check "$command --$option has a default: $help" eval '! grep -q "; default: " <<<"$help"'
    [ "$how" != time ] || continue
    given=(--"$option")
    [ "$other" = - ] || given+=("$other")
    [ "$default" != '\n' ] || default=$'\n'
    [ -e "without-$how" ] || result "$how" >"without-$how"
    cp "without-$how" without
    result "$how" "${given[@]}" >with
    check "$command --$option $other changes nothing: $(head -c 300 with)" eval '! cmp -s without with'
    case $default in
    required) check "$command needs --$option" grep -q "exit code 2" without ;;
    false | '' | *_*) check "$command ends well without --$option: $(head -c 300 error.txt)" grep -q 'exit code [02]' without ;;
    *)
        result "$how" --"$option" "$default" >explicit
        check "$command --$option is $default by default: $(diff without explicit | head -n 4)" cmp -s without explicit
        check "$command ends well: $(head -c 300 error.txt)" grep -q 'exit code 0' explicit
        ;;
    esac
done <table

# The unit too: 2042500 tokens for training are less than two shards of 2^20 bytes, and more than two of 10^6.
head -c 2150000 <(yes 'many words') >large.txt
result pack_large --shard-mb 1 >with
check "--shard-mb is in 2^20 bytes: $(head -n 2 with)" grep -q 'tokens in 2 shards: packed/train' with

# No option of any command is left out.
"$dtrain" --help | sed -nE 's/^  dtrain ([a-z]+).*/\1/p' | while read -r command; do
    "$dtrain" "$command" --help | sed -nE "s/^  (-[a-z], )?--([a-z0-9-]+).*/$command \2/p"
done | sort >listed
check "options without a row: $(comm -23 listed <(cut -d' ' -f1,2 table | sort -u) | words)" \
    cmp -s listed <(cut -d' ' -f1,2 table | sort -u)
finish
