#!/usr/bin/env bash
# A sweep on one machine: trains with the settings of each line of a file, one run after the other, then compares them.
# On a cluster launch/array.sbatch reads the same file, and starts a job for each line.
#
#   launch/sweep.sh -np RANKS build/dtrain config.ini sweep.txt [section.key=value …]
#
# A line of sweep.txt is a list of section.key=value; blank lines and comments (#) do not count. A run without its own
# run.name is named after file and line: sweep-1, sweep-2, …
#
#   optim.lr=1e-3
#   optim.lr=3e-3
#   optim.lr=3e-3 optim.weight_decay=0 run.name=no-decay
#
# A sweep in which two runs have the same folder is refused. Ctrl-C saves and stops; the same command then goes on.

# Reads the file into sweep_settings and sweep_folders, an element for each line. Uses `say`; exits where a line is wrong.
read_sweep() { # file, dtrain, its arguments for all lines …
    local file=$1 dtrain=$2 lines settings folder i
    local -A line_of
    shift 2
    mapfile -t lines < <(sed 's/\r$//;s/\(^\|[[:space:]]\)#.*//;/^[[:space:]]*$/d' "$file")
    sweep_settings=() sweep_folders=()
    for i in $(seq ${#lines[@]}); do
        read -ra settings <<<"${lines[i - 1]}"
        [[ " ${settings[*]}" == *" run.name="* ]] || settings+=("run.name=$(basename "${file%.*}")-$i")
        folder=$("$dtrain" --run-folder "$@" "${settings[@]}") || {
            say "with line $i of $file: ${settings[*]}"
            exit 2
        }
        [ -z "${line_of[$folder]:-}" ] || {
            say "$file: lines ${line_of[$folder]} and $i would both train in $folder: give each a run.name of its own, and set no run.dir"
            exit 2
        }
        line_of[$folder]=$i
        sweep_settings+=("${settings[*]}")
        sweep_folders+=("$folder")
    done
}
[ "${BASH_SOURCE[0]}" = "$0" ] || return 0

set -euo pipefail
say() { echo "sweep.sh: $*" >&2; }
if [ "${1:-}" != -np ] || [ $# -lt 5 ]; then
    echo "usage: launch/sweep.sh -np RANKS build/dtrain config.ini sweep.txt [section.key=value …]" >&2
    case ${1:-} in -h | --help) exit 0 ;; *) exit 2 ;; esac
fi
here=$(dirname "$0") ranks=$2 dtrain=$3 config=$4 sweep=$5
shift 5
[ -r "$sweep" ] || { say "cannot read $sweep"; exit 2; }
read_sweep "$sweep" "$dtrain" "$config" "$@"
[ ${#sweep_settings[@]} -gt 0 ] || { say "$sweep has no line"; exit 2; }

set -m # the run has a process group of its own: a signal reaches it once, from here
asked='' child='' status=0 trained=()
trap 'asked=INT; kill -INT $child 2>/dev/null' INT
trap 'asked=TERM; kill -TERM $child 2>/dev/null' TERM
for i in $(seq 0 $((${#sweep_settings[@]} - 1))); do
    read -ra settings <<<"${sweep_settings[i]}"
    say "run $((i + 1)) of ${#sweep_settings[@]}: ${sweep_settings[i]}"
    "$here/run.sh" -np "$ranks" "$dtrain" "$config" "$@" "${settings[@]}" &
    child=$! code=0
    wait $child || code=$?
    while kill -0 $child 2>/dev/null; do # a signal ended the wait, not the run
        code=0
        wait $child || code=$?
    done
    [ ! -e "${sweep_folders[i]}/metrics.jsonl" ] || trained+=("${sweep_folders[i]}")
    [ $code -eq 0 ] || { status=$code; say "run $((i + 1)) failed with exit code $code"; }
    [ -z "$asked" ] || { say "stopped: the same command goes on"; break; }
done
[ ${#trained[@]} -lt 2 ] || "$here/curve.sh" "${trained[@]:0:26}"
exit $status
