#!/usr/bin/env bash
# From nothing to a trained model in one command: installs what is missing, builds, packs text into
# HDF5 shards, trains a byte-level Mamba on two ranks for about two minutes, draws the loss curve and
# lets the model write.
#
#   launch/quickstart.sh [--text DIR] [--minutes M] [--ranks N]
#
#   --text DIR    text to learn (default: the C headers of this machine, /usr/include)
#   --minutes M   how long to train (default 2)
#   --ranks N     MPI ranks (default 2)
set -euo pipefail
cd "$(dirname "$0")/.."

text=/usr/include minutes=2 ranks=2
usage() {
    sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' launch/quickstart.sh
}
while [ $# -gt 0 ]; do
    case $1 in
    --text | --minutes | --ranks)
        [ $# -ge 2 ] || { echo "$1 needs a value" >&2; exit 2; }
        case $1 in
        --text) text=$2 ;;
        --minutes) minutes=$2 ;;
        --ranks) ranks=$2 ;;
        esac
        shift 2
        ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
    esac
done
[ -d "$text" ] || { echo "--text $text: no such folder" >&2; exit 2; }
[[ $ranks =~ ^[1-9][0-9]*$ && $minutes =~ ^[0-9]+(\.[0-9]+)?$ ]] ||
    { echo "--ranks takes a whole number, --minutes a number" >&2; exit 2; }

say() { printf '\n== %s\n' "$*"; }

say "set-up and build"
./launch/setup.sh
log=$(mktemp)
build() {
    cmake --preset cpu-release && cmake --build --preset cpu-release
}
build >"$log" 2>&1 || { tail -n 40 "$log" >&2; echo "the build failed: $log holds all of it" >&2; exit 1; }
rm -f "$log"
dtrain=build/dtrain data=quickstart/data run=quickstart/run
rm -rf quickstart

say "packing $text into HDF5 shards"
$dtrain pack --format text --val 0.05 -o $data "$text"

say "measuring this machine"
# How many steps fit into the time, from one rank's rate on all cores.
rate=$($dtrain bench --step --json --d-model 192 --n-layer 4 --seq-len 256 --batch 16 --vocab 256 |
    sed -n 's/.*"step_ms":\([0-9.]*\).*/\1/p')
steps=$(awk -v ms="$rate" -v minutes="$minutes" \
    'BEGIN { n = int(minutes * 60000 / ms / 1.1); print n < 60 ? 60 : n > 20000 ? 20000 : n }')
echo "$rate ms a step: $steps steps"

say "training on $ranks ranks"
launch/run.sh -np "$ranks" $dtrain launch/quickstart.ini run.dir=$run run.steps="$steps" \
    data.train="$data/train-*.h5" data.val="$data/val-*.h5"

say "the loss, in nats a byte"
launch/curve.sh $run/metrics.jsonl

say "what the model writes after \"#include <\""
$dtrain sample $run --prompt "#include <" --tokens 400

cat <<EOF

The run is in $run:
  metrics.jsonl             a line a step
  checkpoints/              each loads in transformers: MambaForCausalLM.from_pretrained(...)
  config.resolved.ini       every setting and where it came from
The shards are in $data. Train on: give run.steps a larger value and run the same command,
  mpirun -np $ranks $dtrain launch/quickstart.ini run.dir=$run run.steps=$((2 * steps)) \\
      data.train='$data/train-*.h5' data.val='$data/val-*.h5'
EOF
