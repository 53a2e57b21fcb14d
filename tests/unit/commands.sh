#!/usr/bin/env bash
# What follows from the table of subcommands: help, shell completion, the man page, and that commands without
# communication run once under a launcher. answers/refused.txt has what is refused.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh" "$1"

run() { # expected exit code, arguments of dtrain …
    local expected=$1 code=0
    shift
    "$dtrain" "$@" >out.txt 2>error.txt </dev/null || code=$?
    check "dtrain $*: exit code $code, not $expected" [ "$code" -eq "$expected" ]
}
says() { check "'$1' is not in $2: $(head -c 300 "$2")" grep -qF -- "$1" "$2"; }

COLUMNS=80 run 0 --help
check "--help: at most 80 columns" [ "$(wc -L <out.txt)" -le 80 ]
commands=$(sed -nE 's/^  dtrain ([a-z]+).*/\1/p' out.txt)
check "at least nine subcommands in --help" [ "$(wc -w <<<"$commands")" -ge 9 ]
keys=$(sed -nE 's/^  ([a-z0-9_]+) .*/\1/p' out.txt | grep -cv '^dtrain$')
for command in $commands; do
    for words in "$command --help" "$command -h" "$command some words --help"; do
        # shellcheck disable=SC2086
        COLUMNS=80 run 0 $words
        says "usage: dtrain $command" out.txt
        check "$words: at most 80 columns" [ "$(wc -L <out.txt)" -le 80 ]
        check "$words: nothing on stderr" [ ! -s error.txt ]
    done
done
run 0 --version
run 0 info
says "memory    $(awk '/^MemTotal/ { printf "%.1f GiB", $2 / 2 ^ 20 }' /proc/meminfo), " out.txt
check "less of it is free: $(grep memory out.txt)" awk '/^  memory/ { less = $4 < $2 } END { exit !less }' out.txt
code=0
"$dtrain" --help >/dev/full 2>error.txt || code=$?
check "output that cannot be written: exit code $code, not 3" [ $code -eq 3 ]
says 'cannot write all of the output' error.txt

# Keys of kinds that the model does not have cause a warning if they are in a file, and are refused on the command line.
write_ini mamba.ini run.steps=2 run.device=cpu model.d_model=32 'model.layers=mamba*2' model.vocab_size=256 model.n_head=4 \
    model.rope_base=10000 model.d_mlp=auto data.train=synthetic:random data.seq_len=16 data.batch=2 optim.lr=1e-3

# A launcher gave GPUs to the job, or says that there are none.
if ! grep -q 'device *cuda' <("$dtrain" info); then
    for gpus in 0: -1:none NoDevFiles:none :none; do
        CUDA_VISIBLE_DEVICES=${gpus%:*} run 0 --check mamba.ini run.device=auto
        check "CUDA_VISIBLE_DEVICES=${gpus%:*}: $(cat error.txt)" test "$(grep -c 'this job has GPUs' error.txt)" -eq $([ "${gpus#*:}" ] && echo 0 || echo 1)
    done
fi
run 0 --check --all mamba.ini
says 'the model (tokens, mamba*2, lm) does not read model.n_head (mamba.ini:9; read by attention)' error.txt
check "a default value is no mistake" [ "$(grep -cE 'rope_base|d_mlp' error.txt)" -eq 0 ]
check "--check prints what the model reads" [ "$(grep -cE '^(n_head|rope_base|d_mlp|d_rnn|frame_size) ' out.txt)" -eq 0 ]
says 'd_state = 16' out.txt
check "--check: less memory is free than there is" awk -v all="$(awk '/^MemTotal/ { print $2 / 1024 }' /proc/meminfo)" \
    '/^  free now/ { found = $3 < all - 1 } END { exit !found }' out.txt

# What fits on a device: more on a larger one, and the proposal is a setting that fits.
run 0 --check --propose mamba.ini
check "--propose: a micro-batch and a window" [ "$(grep -cE '^  data.(micro_batch|seq_len) = [0-9]+ +model.recompute = (none|scan|block) ' out.txt)" -ge 2 ]
check "--propose: sizes with the next good ones" grep -qE '^  mixer.x_proj.weight, outputs +[0-9]+  next: [0-9]+, [0-9]+$' out.txt
longest=0
for device in rtx3070-8 rtx3060-12 rtx4090-24 rtx5090-32 a100-40 h100-80 h200-141; do
    run 0 --check --propose --device $device mamba.ini model.layers='mamba*48' model.d_model=1024
    window=$(sed -n 's/^  data.seq_len = \([0-9]*\) .*/\1/p' out.txt | head -n 1)
    check "--propose: $device has $window, more than $longest" [ "$window" -gt "$longest" ]
    longest=$window
done
DTRAIN_MAX_ISA=plain run 0 --check --propose mamba.ini run.precision=auto
says 'fp32 storage' out.txt
DTRAIN_MAX_ISA=plain run 0 --check --propose --device h200-141 mamba.ini run.precision=auto # a GPU prefers bf16
says 'bf16 storage' out.txt
# A window that fits on neither device whole is run in segments, which are longer on the larger device and with more
# recomputation.
shorter=0
for device in rtx3070-8 h100-80; do
    run 0 --check --propose --device $device mamba.ini model.layers='mamba*24' model.d_model=1024 data.seq_len=1048576
    mapfile -t segments < <(sed -n 's/^  model.segment = \([0-9]*\) .*/\1/p' out.txt)
    check "--propose: segments on $device: ${segments[*]}" [ ${#segments[@]} -eq 3 -a "${segments[0]}" -gt "$shorter" -a "${segments[0]}" -lt "${segments[1]}" \
        -a "${segments[1]}" -lt "${segments[2]}" -a $((segments[0] % 64)) -eq 0 ]
    shorter=${segments[0]}
done
run 0 --check --propose --device h100-80 mamba.ini
check "--propose: no segments of a window that fits" [ "$(grep -c segment out.txt)" -eq 0 ]

# The sizes of the ready configurations, in millions of parameters.
run 0 --check --propose --device h200-141 "$(dirname "$0")/../../launch/caduceus.ini" data.train=synthetic:random data.val= \
    log.eval_every=0 run.device=cpu data.reverse_complement=false
says '7.725 M parameters' out.txt
recipe=$(dirname "$0")/../../launch/mamba.ini
while read -r size millions; do
    # shellcheck disable=SC2046 # words of a line
    run 0 --check --propose --device h200-141 "$recipe" data.train=synthetic:random data.val= log.eval_every=0 run.device=cpu \
        $(sed -n "s/^;   $size //p" "$recipe")
    says "$millions M parameters" out.txt
done <<'EOF'
130M 129.135
370M 371.516
790M 793.204
1.4B 1372.178
2.8B 2768.346
EOF
run 2 --check mamba.ini model.d_rnn=16 model.n_kv_head=1
says 'command line: model.d_rnn: read by gru, lstm only, and the model is tokens, mamba*2, lm' error.txt
says 'command line: model.n_kv_head: read by attention only' error.txt
run 0 --check mamba.ini model.layers='mamba attention gru' model.d_rnn=16
check "of these kinds all are read: $(cat error.txt)" [ ! -s error.txt ]
says 'd_rnn = 16' out.txt
run 2 --check mamba.ini model.heads=a:huber
says 'a policy (model.heads) learns from episodes of frames' error.txt
run 0 mamba.ini run.dir=r model.layers=gru
check "config.json has what applies: $(cat r/checkpoints/*/config.json)" \
    [ "$(grep -cE 'state_size|n_head|attention_heads|d_mlp|frame_size|expand|intermediate' r/checkpoints/step-00000002/config.json)" -eq 0 ]
run 0 mamba.ini run.dir=r model.layers=gru run.steps=3
says 'does not read model.n_head' error.txt
check "a key that nothing reads does not change: $(cat error.txt)" [ "$(grep -c 'n_head was' error.txt)" -eq 0 ]
run 0 --check r/config.resolved.ini
check "what a run resolved is read without a warning: $(cat error.txt)" [ "$(grep -c 'does not read' error.txt)" -eq 0 ]
sed -i 's/^\[model\]/&\ndt_rank = 2/' r/config.resolved.ini # earlier versions wrote such files
run 0 mamba.ini run.dir=r model.layers=gru run.steps=3
says 'has already trained its 3 steps' error.txt
rm -r r mamba.ini # c.ini must be the only file

# Completion: the function as bash calls it.
run 0 completion bash
cp out.txt completion.bash
# shellcheck disable=SC1091
. ./completion.bash
completes() { # expected words, words of the command line …
    local expected=$1
    shift
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
    _dtrain
    check "$*: completed to '${COMPREPLY[*]}', not '$expected'" [ "${COMPREPLY[*]}" = "$expected" ]
}
touch c.ini
completes 'bench' dtrain b
completes 'completion c.ini' dtrain c
completes '--check' dtrain --c
completes '--micro-batch' dtrain bench --mi
completes 'auto cuda cpu' dtrain bench --device ''
completes 'cuda cpu' dtrain bench --device = c
completes '--steps' dtrain order c.ini --s
completes 'data.seq_len= data.stride= data.shuffle=' dtrain c.ini data.s
completes 'optim.beta1= optim.beta2=' dtrain --check c.ini optim.b
completes 'linear' dtrain c.ini optim.schedule = l
completes 'true false' dtrain eval c.ini data.shuffle =
completes '' dtrain verify shards/x
_dtrain_options=$(COMP_WORDS=(dtrain bench --) COMP_CWORD=2 && _dtrain && echo "${COMPREPLY[*]}")
"$dtrain" bench --help | sed -nE 's/^  (-[a-z], )?(--[a-z0-9-]+).*/\2/p' >options.txt
check "all of bench's options complete: $_dtrain_options" \
    [ "$_dtrain_options" = "$(tr '\n' ' ' <options.txt)--help" ]

(COMP_WORDS=(dtrain c.ini '') COMP_CWORD=2; _dtrain; printf '%s\n' "${COMPREPLY[@]}") >completed.txt
check "as many keys complete as --help lists, $keys" [ "$(wc -l <completed.txt)" -eq "$keys" ]

# zsh: the syntax, and what a terminal shows after a tab.
run 0 completion zsh
cp out.txt _dtrain
if command -v zsh >/dev/null && command -v python3 >/dev/null; then
    check "zsh reads it" zsh -n _dtrain
    cat >terminal.py <<'EOF'
import os, pty, re, select, sys, time

def read_until(fd, pattern, limit=20):
    text, end = "", time.time() + limit
    while time.time() < end and not re.search(pattern, text):
        if select.select([fd], [], [], 0.1)[0]:
            text += os.read(fd, 65536).decode(errors="replace")
    return text

pid, fd = pty.fork()
if pid == 0:
    os.environ["TERM"] = "dumb"
    os.execvp("zsh", ["zsh", "-f", "-i"])
os.write(fd, b"PS1='%# '; stty cols 100; autoload -U compinit; compinit -D -u; source ./_dtrain; echo LOA''DED\n")
read_until(fd, "LOADED[^']*# ")
os.write(fd, sys.argv[1].encode() + b"\t")
text = read_until(fd, sys.argv[2])
os.close(fd)
os.waitpid(pid, 0)
sys.exit(0 if re.search(sys.argv[2], text) else f"after a tab: {text!r}")
EOF
    check "zsh completes an option" python3 terminal.py 'dtrain bench --comm --colle' 'collective='
    check "zsh completes a value" python3 terminal.py 'dtrain c.ini optim.schedule=lin' 'linear'
fi

# The man page: only requests that man knows, and every command, option and key.
run 0 man
cp out.txt dtrain.1
check "the page begins with .TH" [ "$(head -c 11 dtrain.1)" = '.TH DTRAIN ' ]
check "no request but these" [ -z "$(grep '^[.]' dtrain.1 | grep -vE '^\.(TH|SH|SS|TP|B|nf|fi)( |$)')" ]
check "no bare hyphen in an option" [ -z "$(grep -E '^\.(B|SS).*(^|[^\\])--' dtrain.1)" ]
for command in $commands; do
    says "dtrain $command" dtrain.1
done
for key in run.steps model.layers optim.schedule log.console; do
    says ".B $key" dtrain.1
done
says '\-\-micro\-batch N' dtrain.1
if command -v mandoc >/dev/null; then
    check "mandoc" mandoc -Tlint -W error dtrain.1
fi
if command -v groff >/dev/null; then
    check "groff has no warning" [ -z "$(groff -man -ww -Kutf8 -Tutf8 dtrain.1 2>&1 >/dev/null)" ]
fi

# Under a launcher a command of one process runs once.
"${local_mpirun[@]}" -np 3 "$dtrain" completion bash >out.txt 2>error.txt
check "one of three ranks prints: $(head -c 300 error.txt)" cmp -s out.txt completion.bash
"${local_mpirun[@]}" -np 2 "$dtrain" bench --step --d-model 8 --n-layer 1 --seq-len 8 --batch 2 --vocab 16 --d-state 2 \
    --threads 1 --seconds 0.001 --json --device cpu >out.txt 2>error.txt
check "one line from two ranks" [ "$(wc -l <out.txt)" -eq 1 ]
"${local_mpirun[@]}" -np 2 "$dtrain" bench --bach 3 >out.txt 2>error.txt
check "one message from two ranks" [ "$(grep -c 'unknown option --bach' error.txt)" -eq 1 ]
finish
