#!/usr/bin/env bash
# durable.sh DTRAIN INTERPOSE MAKE_EPISODES: when a command ends, what it wrote is on the disk: each file was synced
# after its last write, and each folder after the last file was created or renamed in it; the folder that a new one is in,
# too.
library=$2 make_episodes=$(realpath "$3")
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh" "$1"
! is_sanitized || { echo "skipped: a library must be loaded before the sanitizer's" >&2; exit 77; }
small_run
"$make_episodes" robomimic episodes.h5 0 13
policy_ini policy.ini run.name=policy data.{train=episodes.h5,val=,val_fraction=0.3} data.{inputs=obs/a,targets=actions} \
    'model.heads=buttons:bernoulli*2 stick:categorical*5'
"$dtrain" policy.ini >policy.log 2>&1 || { cat policy.log >&2; exit 1; }
printf '>chr1\nACGTacNNGT\n>chr2\nGGTT\n' >dna.fa

# A file may have been written under a temporary name: .NAME.tmp, NAME.part, .NAME.tmp-ID.
lacking() { # log of calls, then the files and folders that must be on the disk: prints those that may not be
    awk '
        function plain(path,   name) { name = path; sub(/.*\//, "", name); sub(/^\./, "", name); sub(/\.(tmp|part|old)(-.*)?$/, "", name); return name }
        function folder(path) { sub(/\/[^\/]*$/, "", path); return plain(path) }
        NR == FNR && $3 ~ /\.log$/ { next } # what the command prints
        NR == FNR {
            name = plain($3)
            if ($2 == "fsync") synced[name] = NR
            else if ($2 == "rename") { entered[folder($3)] = NR; last[name "/"] = NR }
            else { written[name] = NR; if (!($3 in seen)) { seen[$3]; entered[folder($3)] = NR } }
            next
        }
        { name = plain($0) }
        !(name in synced) { print $0 " was never synced"; next }
        written[name] > synced[name] { print $0 " was written after its sync" }
        entered[name] > synced[name] { print $0 " got a name after its sync" }' "$1" <(printf '%s\n' "${@:2}")
}
durable() { # folder, command …: checks the files and folders that the command leaves there
    local folder=$PWD/$1 name=$1 code left lacking parent=()
    shift
    [ -d "$folder" ] || parent=("$PWD")
    rm -f calls.log
    FAULT_LOG=$PWD/calls.log FAULT="call=write,put,fsync,rename path=$PWD" LD_PRELOAD=$library "$@" >"$name.log" 2>&1
    code=$?
    check "$name: exit code $code: $(tail -n 2 "$name.log")" test $code -eq 0
    mapfile -t left < <(find "$folder" ! -name .lock ! -name .ended)
    check "$name: has files: ${left[*]}" test ${#left[@]} -gt 1
    lacking=$(lacking calls.log "${left[@]}" "${parent[@]}")
    check "$*: $lacking" test -z "$lacking"
}
durable packed "$dtrain" pack -o packed --val 0.2 text
durable task "$dtrain" pack -o task --rows 30 mqar
durable dna "$dtrain" pack -o dna --format fasta --val 0.5 dna.fa
durable run "$dtrain" small.ini run.dir=run checkpoint.every=5
durable exported "$dtrain" export run exported
"$dtrain" small.ini run.dir=deep run.steps=1 optim.warmup_steps=0 model.n_layer=30 >deep.log 2>&1 || { cat deep.log >&2; exit 1; }
durable shards "$dtrain" export deep shards --shard-mb 1
data() { # file: the bytes of its weights, after the header and its length
    echo $(($(stat -c %s "$1") - 8 - $(od -An -N8 -t u8 "$1")))
}
sizes="$(data shards/model-00001-of-00002.safetensors) $(data shards/model-00002-of-00002.safetensors)"
check "the first of two files has at most 1 MB, and no tensor more would fit: $sizes" awk -v sizes="$sizes" \
    'BEGIN { split(sizes, size); exit !(size[1] <= 1e6 && size[1] > 0.97e6 && size[2] > 0) }'
durable int8 "$dtrain" export run int8 --int8
mkdir predictions
durable predictions "$dtrain" predict runs/policy -o predictions/p.h5
finish
