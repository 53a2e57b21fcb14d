#!/usr/bin/env bash
# From a fresh machine to a trained model in one command: installs missing packages, builds, packs text
# into HDF5 shards, trains a byte-level Mamba on two ranks for about two minutes, draws the loss curve
# and generates text.
#
#   launch/quickstart.sh [--text PATH] [--minutes M] [--ranks N]
#
# Each run replaces the folder quickstart/.
#
#   --text PATH   a file or folder of text to train on (default: the C headers of this machine, /usr/include)
#   --minutes M   how long to train (default 2)
#   --ranks N     MPI ranks (default 2)
set -euo pipefail
start=$PWD
cd "$(dirname "$0")/.."

text=/usr/include minutes=2 ranks=2
usage() {
    sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' launch/quickstart.sh
}
while [ $# -gt 0 ]; do
    case $1 in
    --text | --minutes | --ranks)
        [ $# -ge 2 ] || { echo "quickstart.sh: $1 needs a value" >&2; exit 2; }
        case $1 in
        --text) [[ $2 = /* ]] && text=$2 || text=$start/$2 ;;
        --minutes) minutes=$2 ;;
        --ranks) ranks=$2 ;;
        esac
        shift 2
        ;;
    -h | --help) usage; exit 0 ;;
    *) { echo "quickstart.sh: unknown option $1"; usage; } >&2; exit 2 ;;
    esac
done
[ "$text" = /usr/include ] || [ -e "$text" ] || # setup.sh installs /usr/include
    { echo "quickstart.sh: --text $text: no such file or folder" >&2; exit 2; }
if [ "$text" != /usr/include ]; then
    bytes=$(find -L "$text" -type f -exec cat {} + 2>/dev/null | head -c 10000 | wc -c) || true
    [ "$bytes" -ge 10000 ] || { echo "quickstart.sh: --text $text: $bytes bytes; give at least 10000" >&2; exit 2; }
fi
[[ $ranks =~ ^(1|2|4|8|16)$ ]] ||
    { echo "quickstart.sh: --ranks $ranks: must be 1, 2, 4, 8 or 16, which divide the 16 windows of a step" >&2; exit 2; }
[[ $minutes =~ ^[0-9]+(\.[0-9]+)?$ && $minutes =~ [1-9] ]] ||
    { echo "quickstart.sh: --minutes $minutes: must be a positive number, such as 2 or 0.5" >&2; exit 2; }

say() { printf '\n== %s\n' "$*"; }

say "setup and build (a few minutes the first time)"
./launch/setup.sh
log=$(mktemp)
build() {
    cmake --preset cpu-release && cmake --build --preset cpu-release --target dtrain dtrain_step ready_data
}
build >"$log" 2>&1 || { tail -n 40 "$log" >&2; echo "the build failed; full log: $log" >&2; exit 1; }
rm -f "$log"
dtrain=build/dtrain data=quickstart/data run=quickstart/run
rm -rf quickstart

say "packing $text into HDF5 shards"
$dtrain pack --format text --val 0.05 -o $data "$text"

say "measuring this machine"
# How many steps fit into the time, from the speed of one rank on all cores.
key() { sed -n "s/^$1 = \([0-9]*\).*/\1/p" launch/quickstart.ini; }
rate=$($dtrain bench --step --json --d-model "$(key d_model)" --n-layer "$(key n_layer)" \
    --seq-len "$(key seq_len)" --batch "$(key batch)" --vocab "$(key vocab_size)" |
    sed -n 's/.*"step_ms":\([0-9.]*\).*/\1/p')
steps=$(awk -v ms="$rate" -v minutes="$minutes" \
    'BEGIN { n = int(minutes * 60000 / ms / 1.1); print (n < 60 ? 60 : n > 20000 ? 20000 : n) }')
printf '%.0f ms per step: %d steps\n' "$rate" "$steps"

say "training on $ranks ranks"
# If the machine slows down after it was measured, training saves and stops when its time is over: the run's .lock
# names the process of rank 0.
limit=$(awk -v minutes="$minutes" 'BEGIN { print int(75 * minutes + 20) }')
SECONDS=0
{
    while [ $SECONDS -lt "$limit" ]; do
        kill -0 $$ 2>/dev/null || exit
        sleep 1
    done
    echo "quickstart.sh: slower than measured: training saves and stops after $limit s" >&2
    kill -USR1 "$(sed 's/process \([0-9]*\) .*/\1/' $run/.lock)"
} &
launch/run.sh -np "$ranks" $dtrain launch/quickstart.ini run.dir=$run run.steps="$steps" \
    data.train="$data/train-*.h5" data.val="$data/val-*.h5" log.every=$((steps / 20))
kill $! 2>/dev/null || true

say "loss, in nats per byte"
launch/curve.sh $run

if [ "$text" = /usr/include ]; then
    say "the loss beside that of other machines"
    # Later in a run the loss follows its learning rate, which depends on its number of steps.
    awk -v steps="$steps" '/^[0-9]/ && ($1 <= 20 || $1 <= steps / 4)' launch/quickstart.reference >quickstart/reference
    launch/curve.sh --expect quickstart/reference $run || cat <<EOF >&2
quickstart.sh: dtrain did not learn as it should. Headers that are unlike those
of Debian may be why; otherwise something computes wrong on this machine:
tests/run.sh -L 'unit|parity|golden' finds what.
EOF
fi

say "text generated after \"#include <\""
$dtrain sample $run --prompt "#include <" --tokens 400

cat <<EOF

The run is in $run:
  metrics.jsonl             one line per step; launch/curve.sh $run draws it
  checkpoints/              each loads in transformers: MambaForCausalLM.from_pretrained(...)
  config.resolved.ini       every setting and where it came from
The shards are in $data. To train further, run the same command with more steps:
  launch/run.sh -np $ranks $dtrain launch/quickstart.ini run.dir=$run run.steps=$((2 * steps)) \\
      data.train='$data/train-*.h5' data.val='$data/val-*.h5'
EOF
