#!/usr/bin/env bash
# Mistakes of users: exit code 2, one message that names the mistake and its place, no signal, and a good run in the
# same folder afterwards. These are mistakes of kinds that are in neither answers/refused.txt nor the tests of rooms
# (answers/messages.txt).
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
shard_tool=$(realpath "$2")
small_run
"$dtrain" small.ini run.name=good run.steps=5 >good.log 2>&1 || { cat good.log >&2; exit 1; }
good=runs/good/checkpoints/step-00000005

bad=("$dtrain" small.ini run.name=bad)
override() { # description, pattern, section.key=value …
    local what=$1 pattern=$2
    shift 2
    refused "$what" "$pattern" "${bad[@]}" "$@"
}
data() { # description, pattern, shard; a whole epoch, so that every byte is read
    refused "$1" "$2" "${bad[@]}" data.val= data.train="$3" run.steps=600
}

# Configuration: file and line, what is allowed, the nearest known name.
sed '$aevry = 3' small.ini >misspelt.ini
refused "unknown key" 'misspelt.ini:[0-9]+: .*evry.*every' "$dtrain" misspelt.ini run.name=bad
printf '\377\376[\0r\0' >utf16.ini
refused "UTF-16" 'utf16.ini is not a text file: byte 0x00 at offset 3' "$dtrain" utf16.ini
refused "one underscore in the environment" 'DTRAIN_RUN_STEPS is not a known key.*DTRAIN_RUN__STEPS' env DTRAIN_RUN_STEPS=3 \
    "${bad[@]}"
refused "a name that is not UTF-8" 'run.name: .*not UTF-8 at byte 3 \(0xe4\)' "$dtrain" small.ini run.name=$'bad\xe4'
override "more threads than cores" 'run.threads: 4096, but only [0-9]+ cores? may be used here' run.threads=4096
refused "two processes with comm.backend = self" 'comm.backend: self, but 2 ranks' env "${local_mpirun[0]}" \
    "${local_mpirun[@]:1}" -np 2 "${bad[@]}" comm.backend=self
override "a model too large for any machine" 'choose a smaller model' model.d_model=1048576 model.expand=64 model.n_layer=4096
refused "activations too large for any machine" 'more memory than any machine has' "$dtrain" --check small.ini data.train=synthetic:random data.val= \
    data.seq_len=2147483647 model.d_model=1048576 model.expand=64
"${bad[@]}" model.d_model=65536 model.n_layer=64 >large.log 2>&1
check "a model too large for this machine: exit code 3" test $? -eq 3
check "a model too large for this machine: $(cat large.log)" grep -qE \
    'training needs [0-9.]+ GiB of memory, and the machine has [0-9.]+ GiB, without swap; most of it for optimizer states' large.log
refused "a bad value in the environment" 'DTRAIN_OPTIM__LR' env DTRAIN_OPTIM__LR=fast "${bad[@]}"
refused "a rank count that does not divide" 'data.batch.*8.*3 ranks' env "${local_mpirun[0]}" "${local_mpirun[@]:1}" \
    -np 3 "${bad[@]}"

# Shards, some of which are good ones with bytes cut off or changed.
mkdir shards
shard=$(ls data/train-*.h5 | head -n 1)
cp "$shard" shards/flipped.h5
printf '\377' | dd of=shards/flipped.h5 bs=1 seek=$(($(stat -c %s "$shard") / 2)) conv=notrunc status=none
data "a flipped byte: the checksum reports it" 'shards/flipped.h5.*(checksum|hash|xxh64)' shards/flipped.h5
check "verify finds the flipped byte" bash -c "'$dtrain' verify shards/flipped.h5 >/dev/null 2>&1; test \$? -eq 2"
override "episodes of tokens held out" 'holds tokens: data.val_fraction holds out episodes' data.val= data.val_fraction=0.1
override "synthetic data held out" 'data.val_fraction: synthetic:random has no episodes' data.train=synthetic:random data.val= data.val_fraction=0.1
override "groups of tokens" 'data.(train|val)|has no episodes: no group is named run_\*' 'data.episodes=run_*'
override "a third axis" 'data.time_axis: 2 is out of range' data.time_axis=2
override "time of tokens" 'holds tokens: data.time_axis is for episodes of frames' data.time_axis=1
override "too long a pattern" 'data.episodes: longer than 127 bytes' "data.episodes=$(printf 'x%.0s' {1..200})"
# 256 MiB of chunks are kept decoded.
"$shard_tool" zeros shards/kept.h5 256 $((1 << 20)) && "$shard_tool" zeros shards/large.h5 257 $((1 << 20)) || exit 1
chunks() { # shard, overrides …: the number of warnings about chunks
    "$dtrain" --check small.ini data.train=shards/"$1".h5 data.val= "${@:2}" 2>&1 >chunks.log | tee warned.log | grep -c 'compressed chunks of 1024 KiB'
}
check "compressed chunks larger than windows are reported" test "$(chunks large data.block=1)" -eq 1
# A window is 48 bytes. A chunk of 2^20 bytes has 21845 of them, and decoding it 32 times for as much data is no reason
# for a warning yet.
check "… with numbers: $(cat warned.log)" grep -q 'data.block = 1 each is decoded about 21845 times .* data.block = 683$' warned.log
check "… of blocks of two" test "$(chunks large data.block=2)" -eq 1
check "… are half: $(cat warned.log)" grep -q 'data.block = 2 each is decoded about 10922 times .* data.block = 683$' warned.log
check "… not with large blocks" test "$(chunks large data.block=700)" -eq 0
check "… not in the order of the file" test "$(chunks large data.block=1 data.shuffle=false)" -eq 0
check "… not where all are kept" test "$(chunks kept data.block=1)" -eq 0
check "what is kept is in the memory plan" grep -q 'decoded chunks .*256' chunks.log

# Model directories and checkpoints.
damaged() { # name: a copy of the good checkpoint to damage
    rm -rf "models/$1"
    mkdir -p models
    cp -r $good "models/$1"
}
model() { # description, pattern, directory
    refused "$1" "$2" "${bad[@]}" run.init_from="$3"
    refused "$1 (resume)" "$2" "${bad[@]}" run.resume="$3"
}
model "a missing model" 'models/absent' models/absent
damaged shape
refused "another shape" 'model.d_model.*64.*32' "${bad[@]}" run.init_from=models/shape model.d_model=64
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n' >pointer
damaged pointer
rm models/pointer/MANIFEST # as in other Hugging Face directories
mv pointer models/pointer/model.safetensors
refused "a Git LFS pointer" 'model.safetensors is a Git LFS pointer' "${bad[@]}" run.init_from=models/pointer
# A flipped byte in the weights of a checkpoint that is named: every number still looks plausible.
damaged flipped
printf X | dd of=models/flipped/model.safetensors bs=1 conv=notrunc status=none \
    seek=$(($(stat -c %s models/flipped/model.safetensors) - 200))
model "flipped weights" 'model.safetensors has hash' models/flipped
refused "dtrain sample of flipped weights" 'model.safetensors has hash' "$dtrain" sample models/flipped
damaged manifest
printf X >>models/manifest/trainer.json
refused "a checkpoint that does not verify" '1 of 1' "$dtrain" verify models/manifest
for file in MANIFEST config.json model.safetensors trainer.json; do # a FIFO that nobody writes to
    damaged fifo
    rm models/fifo/$file
    mkfifo models/fifo/$file
    refused "verify of a FIFO for $file" '1 of 1' timeout 60 "$dtrain" verify models/fifo
    refused "resuming from a FIFO for $file" "models/fifo" timeout 60 "${bad[@]}" run.resume=models/fifo
done
mkfifo fifo.ini
refused "a FIFO as configuration file" 'fifo.ini is not a regular file' timeout 60 "$dtrain" fifo.ini
refused "resuming from a checkpoint that does not verify" 'trainer.json' "${bad[@]}" run.resume=models/manifest

# Keys that determine the order or the model must not change on resume. Every difference is reported.
refused "another batch on resume" 'data.batch is 4, the checkpoint has 8' "$dtrain" small.ini run.name=good data.batch=4 run.steps=20

mkdir changed && cp data/val-00000.h5 "changed/$(basename "$shard")" # of the same name, with other tokens
refused "shards changed since the checkpoint" 'data.train: shard 1, train-00000.h5, has' "$dtrain" small.ini run.name=good \
    data.train='changed/train-*.h5' run.steps=20

# Two runs share a name: the run that was trained is not reported as the one that was asked for, nor is that written
# down.
cp runs/good/config.resolved.ini trained.ini
refused "other settings of a run that is trained" "runs/good is already trained this far, with other settings" "$dtrain" small.ini \
    run.name=good optim.lr=1e-3 run.steps=4 comm.dtype=bf16 comm.timeout_s=99
check "… naming each" grep -q "optim.lr was '3e-3', now it is '1e-3'" refused.log
check "… the rounding of gradients" grep -q "comm.dtype was 'fp32', now it is 'bf16'" refused.log
check "… no setting that changes nothing" bash -c '! grep -q timeout_s refused.log'
check "… and the steps" grep -q "run.steps was '5', now it is '4'" refused.log
check "… what was trained stays written" cmp trained.ini runs/good/config.resolved.ini
check "what changes nothing in it is none" "$dtrain" small.ini run.name=good run.steps=5 optim.lr=0.003 run.threads=1 checkpoint.keep=2 \
    log.every=3 data.train="$PWD/data/train-*.h5"
check "… and is not written either" cmp trained.ini runs/good/config.resolved.ini
"$dtrain" small.ini run.name=branch run.steps=6 checkpoint.every=3 >branch.log 2>&1
refused "resuming a run from other than its newest checkpoint" 'run.resume: .*step 3, .* step 6' "$dtrain" small.ini \
    run.name=branch run.resume=runs/branch/checkpoints/step-00000003
check "… which stay" "$dtrain" verify runs/branch/checkpoints/step-0000000{3,6} >/dev/null
cp -r runs/branch/checkpoints/step-0000000{3,9}
check "a copy under another name is not resumed from" "$dtrain" small.ini run.name=branch run.steps=8 >branch.log 2>&1
check "… but from the newest" grep -q 'resuming from runs/branch/checkpoints/step-00000006' branch.log
check "… which says so" grep -q 'skipping .*step-00000009 is a checkpoint of step 3 under another name' branch.log
refused "run.resume = never over old checkpoints" 'run.resume' "$dtrain" small.ini run.name=good run.resume=never

# Output.
touch file
refused "an output folder below a file" 'folder file' "$dtrain" small.ini run.dir=file/run
ln -s nowhere link
refused "a link to nothing as output folder" 'hint: .* a link to nothing' "$dtrain" small.ini run.dir=link
if [ "$(id -u)" -ne 0 ]; then
    mkdir -m 555 locked
    refused "an output folder without write permission" 'locked' "$dtrain" small.ini run.dir=locked/run
else
    refused "an output folder without write permission" '/proc' "$dtrain" small.ini run.dir=/proc/dtrain-run
fi
mkdir -p runs/blocked/metrics.jsonl
refused "a folder in place of metrics.jsonl" 'cannot write .*metrics.jsonl: Is a directory' "$dtrain" small.ini run.name=blocked
check "dtrain export of a run's newest checkpoint" "$dtrain" export runs/good exported
check "… its weights" cmp exported/model.safetensors $good/model.safetensors

# A good run works after all of this.
check "a good run in the folder of the bad ones" "${bad[@]}" run.steps=5
check "… with the same bits" same_bits runs/bad/checkpoints/step-00000005 $good
finish
