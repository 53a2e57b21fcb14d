# Shared by the script tests. Sourced with the path of dtrain as $1, in a scratch folder.
# shellcheck shell=bash
set -uo pipefail
dtrain=$(realpath "$1")
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
failures=0 checks=0
# shellcheck source=launch/environment.sh
. "$repository/launch/environment.sh"
export COLUMNS=1000 # messages are compared as whole lines; dist_console measures them as people see them
case $PWD in # if run by hand: in an empty folder with such a name, whose contents are removed
*.d) rm -rf ./* ;;
*) { echo "$0: empties its working folder: run it in a scratch folder named *.d, as ctest does" >&2; exit 2; } ;;
esac
[ -f "${library:-$0}" ] || { echo "$0: $library is missing: build everything first" >&2; exit 2; }
temporary=$(mktemp -d) # for all programs; files that are left in it at the end are a failure
export TMPDIR=$temporary
trap 'rm -rf "$temporary"' EXIT
exec 3>&2 # failures are reported here, wherever the output of a checked command goes

check() { # description, command …: the command must succeed
    checks=$((checks + 1))
    local what=$1
    shift
    if ! "$@"; then
        failures=$((failures + 1))
        echo "FAILED: $what" >&3
    fi
}

check_python() { # description, arguments of python3 …: as check, where there is Python
    ! command -v python3 >/dev/null || check "$1" python3 "${@:2}"
}

refused() { # what, pattern of the message, command of dtrain …: it must end with exit code 2 and one message ($messages, of another program)
    local what=$1 pattern=$2
    shift 2
    "$@" >refused.log 2>&1 </dev/null
    check "$what: exit code 2" test $? -eq 2
    check "$what: $pattern in: $(cat refused.log)" grep -aqE -- "$pattern" refused.log
    check "$what: one message, not $(grep -ac '^dtrain: error' refused.log)" test "$(grep -ac '^dtrain: error' refused.log)" -eq "${messages:-1}"
}

# A rank that waits for another one's state reports that rank, which was killed or stopped.
reports_fates() { # arguments of a run that shares windows between two ranks …
    local host signal code word name
    host=$(uname -n)
    export OMPI_MCA_odls_base_sigkill_timeout=1 # as launched by hand
    for fate in KILL:137:died STOP:3:'is suspended \(SIGSTOP\)'; do
        IFS=: read -r signal code word <<<"$fate"
        name=fate-$signal
        start 2 "$@" run.name="$name" run.steps=1000000 checkpoint.on_signal=false
        check "$name: trains" wait_until grep -q '"step":5,' "runs/$name/metrics.jsonl"
        kill -"$signal" "$(rank_pid 1)"
        wait "$job"
        check "$name: exit code $?, not $code" test $? -eq "$code"
        check "$name: last words" grep -qE "rank 1 on host $host \(pid [0-9]+\) $word at step [0-9]+" "$name.log"
    done
}

finish() {
    # Open MPI leaves its own files if a rank is killed.
    check "temporary files are left: $(ls -A "$temporary")" test -z "$(find "$temporary" -mindepth 1 -maxdepth 1 ! -name 'ompi.*')"
    echo "$checks checks, $failures failed" >&2
    [ "$checks" -gt 0 ] && [ "$failures" -eq 0 ]
    exit
}

is_sanitized() {
    [[ $(ldd "$dtrain") == *libasan* ]]
}

ranks() { # n, arguments of dtrain …
    local n=$1
    shift
    "${local_mpirun[@]}" -np "$n" "$dtrain" "$@"
}

train() { # name, ranks, key=value …: the run must succeed
    local name=$1 n=$2
    shift 2
    check "$name" ranks "$n" small.ini run.name="$name" "$@" >"$name.log" 2>&1
}

rejected() { # pattern, override …: dtrain must refuse $ini with these
    refused "${*:2}" "$1" "$dtrain" "${ini:?}" run.name=refused "${@:2}"
}

limited() { # KiB, arguments of dtrain …: no file may become larger
    (ulimit -f "$1" && "$dtrain" "${@:2}")
}

# Seconds, rounded up, that mpirun takes here before a rank begins, for limits that include it. They are many with a
# slow name server and no line for localhost in /etc/hosts.
launch_seconds() {
    local begun=${EPOCHREALTIME/./}
    "${local_mpirun[@]}" -np 2 true
    echo $(((${EPOCHREALTIME/./} - begun + 999999) / 1000000))
}

# The same text on every machine and at every commit, so that results depend on the program alone: random words of
# syllables, rarer ones less often, in sentences that end with their first word again.
words() { # bytes: a little more than so many
    awk -v bytes="$1" 'function draw(n) { x = x * 16807 % 2147483647; return x % n }
        BEGIN {
            x = 1
            split("ka lo mi ne ru sa te vi do pe an or is et un", syllable, " ")
            for (w = 0; w < 300; w++)
                for (i = draw(3); i >= 0; i--) word[w] = word[w] syllable[1 + draw(15)]
            for (; bytes > 0; bytes -= length(line) + 1) {
                line = first = word[draw(1 + draw(300))]
                for (n = 3 + draw(9); n > 0; n--) line = line (draw(8) ? " " : ", ") word[draw(1 + draw(300))]
                print line = line " " first "."
            }
        }'
}

# Copies a checkpoint and changes numbers of a tensor, from one on.
overwrite() { # the checkpoint, the new folder, tensor, the first number, how many, four bytes for each as a format of printf
    cp -r "$1" "$2"
    rm -f "$2/MANIFEST"
    local file=$2/model.safetensors header start
    header=$((8 + $(od -An -tu8 -N8 "$file")))
    start=$(head -c $header "$file" | grep -ao "\"$3\":{[^}]*\"data_offsets\":\[[0-9]*" | grep -o '[0-9]*$')
    # shellcheck disable=SC2059 # the bytes are a format
    for ((i = 0; i < $5; i++)); do printf "$6"; done >numbers.bin
    dd if=numbers.bin of="$file" bs=64 oflag=seek_bytes seek=$((header + start + 4 * $4)) conv=notrunc 2>dd.log
}

# A model whose outputs are not finite: norm_f.weight and the last block's projection become 3e38, which is finite and
# loads.
overflowing() { # a checkpoint of small.ini, the new folder
    overwrite "$1" "$2" backbone.norm_f.weight 0 $((32 + 32 * 64)) '\x99\x76\x61\x7f'
}

# A tiny byte model on 20 short documents, of which two are for validation: trained in a second or two.
small_run() { # writes small.ini, text/ and data/
    mkdir text
    words 80000 >words.txt
    split -n l/20 words.txt text/
    "$dtrain" pack -o data --val 0.1 text >pack.log 2>&1 || { cat pack.log >&2; exit 1; }
    cat >small.ini <<'EOF'
[run]
steps = 12
precision = fp32
[model]
d_model = 32
n_layer = 2
vocab_size = 256
[data]
train = data/train-*.h5
val = data/val-*.h5
seq_len = 48
batch = 8
block = 4
[optim]
lr = 3e-3
warmup_steps = 3
[log]
every = 1
EOF
}

# Writes a configuration with these keys. If a key is given twice, the last value counts.
write_ini() { # file, SECTION.KEY=VALUE …
    printf '%s\n' "${@:2}" | tac | LC_ALL=C sort -st= -k1,1 -u |
        awk -F. '$1 != section { print "[" (section = $1) "]" } { sub(/[^.]*\./, ""); print }' >"$1"
}

# Writes the configuration of a tiny policy in which these keys are replaced or added.
policy_ini() { # file, SECTION.KEY=VALUE …
    write_ini "$1" run.steps=8 run.precision=fp32 model.d_model=24 model.n_layer=2 'model.heads=buttons:bernoulli*2 stick:categorical*5' \
        data.train=train.h5 data.val=val.h5 data.seq_len=16 data.batch=8 optim.lr=1e-2 log.every=1 "${@:2}"
}

# Writes demonstrations of the simulated game to data/ and the configuration of a policy that learns from them.
game_policy() { # the game, file, SECTION.KEY=VALUE …
    "$1" data 24 40 3 >game.log || { cat game.log >&2; exit 1; }
    policy_ini "$2" model.d_model=32 model.n_layer=1 data.{train=data/train-\*,val=data/val}.h5 data.seq_len=40 data.block=4 optim.lr=3e-3 log.eval_every=4 \
        'model.heads=buttons:bernoulli*8@2 main_x:categorical*17 main_y:categorical*17 c_x:huber c_y:regression@0.1 shoulder:categorical*5' "${@:3}"
}

train_lines() { # metrics.jsonl: "step loss grad_norm" of each train line; a text with the file name if there is none
    sed -n 's/.*"event":"train","step":\([0-9]*\),.*"loss":\([^,]*\),"grad_norm":\([^,]*\),.*/\1 \2 \3/p' "$1" | grep . ||
        echo "no train line in $1"
}

first_loss() { # run: the loss of its first step
    train_lines "runs/$1/metrics.jsonl" | head -n 1 | cut -d' ' -f2
}

# The same steps, with losses that agree within a relative tolerance, and gradient norms too if there is a tolerance for
# them. A loss that may cross 0 is compared with the size of the terms that it sums.
same_losses() { # metrics A, metrics B, tolerance, perhaps a tolerance of gradient norms or "", that size
    paste -d' ' <(train_lines "$1") <(train_lines "$2") | awk -v tolerance="$3" -v norms="${4:-}" -v size="${5:-0}" '
        function apart(x, y) { return x < y ? y - x : x - y }
        $1 != $4 { print "step " $1 " is beside step " $4; bad = 1 }
        !(apart($2, $5) <= tolerance * ($5 > size ? $5 : size)) { print "step " $1 ": loss " $2 " and " $5; bad = 1 }
        norms != "" && !(apart($3, $6) <= norms * $6) { print "step " $1 ": gradient norm " $3 " and " $6; bad = 1 }
        END { exit bad || NR == 0 }'
}

evals() { # run: its validation losses
    sed -n 's/.*"event":"eval","step":\([0-9]*\),"loss":\([^,]*\),.*/\1 \2/p' "runs/$1/metrics.jsonl"
}

numbers() { # file: its numbers
    grep -oE '[0-9]+\.[0-9]+(e-?[0-9]+)?' "$1"
}

scores() { # run: of the heads in its validations
    sed -n 's/.*"heads"://p' "runs/$1/metrics.jsonl" | numbers /dev/stdin
}

slots() { # run: the losses of its sources
    grep -o '"loss":[^,]*,"tokens":[0-9]*,"epochs"' "runs/$1/metrics.jsonl" | grep -oE '[0-9]+\.[0-9]+'
}

near() { # two files of numbers, tolerance
    paste -d' ' "$1" "$2" | awk -v t="$3" '
        { for (i = 1; i <= NF / 2; i++) { d = $i - $(i + NF / 2); if (d < 0) d = -d; if (!(d <= t * ($i < 0 ? -$i : $i))) bad = 1 } }
        END { exit bad || NR == 0 }'
}

# Gradients are fp32 sums over positions in another order, and so are products of matrices.
same_training() { # what, run, run
    check "$1: losses and norms" same_losses "runs/$2/metrics.jsonl" "runs/$3/metrics.jsonl" 1e-6 2e-6
    check "$1: validation" near <(evals "$2") <(evals "$3") 1e-6
}

same_bits() { # checkpoint A, checkpoint B
    cmp "$1/model.safetensors" "$2/model.safetensors" &&
        cmp "$1/optimizer-00001-of-00001.safetensors" "$2/optimizer-00001-of-00001.safetensors"
}

eval_loss() { # from the line of dtrain eval: the loss and the tokens
    sed -n 's/.*"loss":\([^,]*\),.*"tokens":\([0-9]*\).*/\1 \2/p'
}

newest() { # folder of a run: its newest checkpoint
    ls -d "$1"/checkpoints/step-* | tail -n 1
}

# Checks how the job of $name.log failed: the error, and its hint on the lines below it.
last_words() {
    sed -n '/^dtrain: error/,/^[^ ]/{/^dtrain: error/p;/^  /p}' "$name.log"
}
last_line() {
    grep -a '^dtrain: ' "$name.log" | tail -n 1
}
failed() { # exit code, the one it must be, seconds, at most, pattern of the last line, pattern of the last words (what to do)
    check "$name: exit code $1, not $2" test "$1" -eq "$2"
    check "$name: took $3 s" test "$3" -le "$4"
    check "$name: last line '$(last_line)' is not '$5'" grep -qE "^dtrain: error: .*$5" <<<"$(last_line)"
    check "$name: words '$(last_words)' lack '$6'" grep -qE "$6" <<<"$(last_words)"
    check "$name: $(grep -ac '^dtrain: error' "$name.log") ranks spoke" test "$(grep -ac '^dtrain: error' "$name.log")" -eq 1
}

seconds_since() { # file: since it was last written
    echo $(($(date +%s) - $(stat -c %Y "$1")))
}

# A job that the test interferes with.
steps_done() { # run: the last step in its metrics, read from the end, since the file grows meanwhile
    tail -n 8 "runs/$1/metrics.jsonl" 2>/dev/null | sed -n 's/.*"event":"train","step":\([0-9]*\),.*}$/\1/p' | tail -n 1
}

wait_until() { # command …: waits up to two minutes for it to succeed
    for _ in $(seq 2400); do
        "$@" && return 0
        sleep 0.05
    done
    return 1
}

is_at_step() { # run, step
    local at
    at=$(steps_done "$1")
    [ "${at:-0}" -ge "$2" ]
}
wait_for_step() { # run, step
    wait_until is_at_step "$@"
}

start() { # n, arguments …: $job is mpirun, in the background, in its own process group; output in $name.log
    local n=$1
    shift
    set -m
    "${local_mpirun[@]}" -np "$n" "$dtrain" "$@" >"$name.log" 2>&1 &
    job=$!
    set +m
}

slow_start() { # the interposer, run, step, n, arguments …: as `start`; each step from that one on takes 0.1 s more
    is_sanitized || # its steps are slow, and the sanitizer must be loaded first
        export FAULT="call=write path=runs/$2/metrics at=$3 times=0 do=100" LD_PRELOAD=$1
    start "${@:4}"
    unset FAULT LD_PRELOAD
}

with_variable() { # NAME=VALUE, pids …: those whose environment has it; the environment of a zombie cannot be read
    local variable=$1 pid
    shift
    for pid in "$@"; do
        grep -zqx "$variable" "/proc/$pid/environ" 2>/dev/null && echo "$pid"
    done
}

rank_pid() { # rank: its process in $job
    # shellcheck disable=SC2046 # process numbers
    with_variable "OMPI_COMM_WORLD_RANK=$1" $(pgrep -P "$job")
}
