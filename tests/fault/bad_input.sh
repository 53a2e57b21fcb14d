#!/usr/bin/env bash
# What users may get wrong: exit code 2, one message that names the mistake and where it is, no signal, and a good
# run in the same folder afterwards.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
shard_tool=$(realpath "$2")
small_run
"$dtrain" small.ini run.name=good run.steps=5 >good.log 2>&1 || { cat good.log >&2; exit 1; }
good=runs/good/checkpoints/step-00000005

refused() { # description, pattern of the message, command …
    local what=$1 pattern=$2 status
    shift 2
    "$@" >out.log 2>err.log </dev/null
    status=$?
    check "$what: exit code $status, not 2: $(head -c 300 err.log)" test $status -eq 2
    check "$what: the message does not match \"$pattern\": $(head -c 400 err.log)" grep -Eq -- "$pattern" err.log
    check "$what: one message, not $(grep -c '^dtrain: error' err.log)" test "$(grep -c '^dtrain: error' err.log)" -eq 1
}
config() { # description, pattern, lines appended to small.ini
    printf '%b' "$3" >lines.txt
    cat small.ini lines.txt >bad.ini
    refused "$1" "$2" "$dtrain" bad.ini run.name=bad
}
override() { # description, pattern, section.key=value …
    local what=$1 pattern=$2
    shift 2
    refused "$what" "$pattern" "$dtrain" small.ini run.name=bad "$@"
}
data() { # description, pattern, shard; a whole epoch, so that every byte is read
    refused "$1" "$2" "$dtrain" small.ini run.name=bad data.val= data.train="$3" run.steps=600
}

# Configuration: file and line, what is allowed, the nearest known name.
config "unknown key" 'bad.ini:[0-9]+: .*evry.*every' 'evry = 3\n'
config "unknown section" 'bad.ini:[0-9]+: .*optm.*optim' '[optm]\nlr = 1\n'
config "duplicate key" 'bad.ini:[0-9]+: .*every' 'every = 3\n'
config "malformed line" 'bad.ini:[0-9]+: ' 'what is this\n'
config "unclosed section" 'bad.ini:[0-9]+: ' '[run\n'
config "control character" 'bad.ini:[0-9]+: ' 'console = pl\001ain\n'
printf '\377\376[\0r\0' >utf16.ini
refused "UTF-16" 'utf16.ini is not a text file: byte 0x00 at offset 3' "$dtrain" utf16.ini
override "number out of range" 'data.seq_len' data.seq_len=0
override "trailing text" 'data.batch.*8x' data.batch=8x
override "NaN" 'optim.lr' optim.lr=nan
override "infinity" 'optim.lr' optim.lr=inf
override "negative" 'optim.lr' optim.lr=-1
override "overflow" 'run.steps' run.steps=99999999999999999999
override "fraction for an integer" 'run.steps' run.steps=1.5
override "enum misspelt" 'optim.schedule.*cosin.*cosine' optim.schedule=cosin
override "unknown key on the command line" 'lrr.*optim.lr' optim.lrr=1
override "a word that is not an override" 'section.key=value' lr
refused "one underscore in the environment" 'DTRAIN_RUN_STEPS is not a known key.*DTRAIN_RUN__STEPS' env DTRAIN_RUN_STEPS=3 \
    "$dtrain" small.ini run.name=bad
refused "a name that is not UTF-8" 'run.name: .*not UTF-8 at byte 3 \(0xe4\)' "$dtrain" small.ini run.name=$'bad\xe4'
override "more threads than cores" 'run.threads: 4096, but only [0-9]+ cores? may be used here' run.threads=4096
override "reproducible without a micro-batch" 'data.micro_batch: required' comm.reduce=reproducible
override "MPI without a launcher" 'comm.backend: mpi, but no launcher' comm.backend=mpi
refused "two processes with comm.backend = self" 'comm.backend: self, but 2 ranks' env "${local_mpirun[0]}" \
    "${local_mpirun[@]:1}" -np 2 "$dtrain" small.ini run.name=bad comm.backend=self
override "a home folder that no shell expands" "run.dir: '~/x': ~ is not expanded" run.dir='~/x'
override "carried state, shuffled" 'data.carry_state: true needs windows in file order' data.carry_state=true
override "warm-up as long as the run" 'optim.warmup_steps' optim.warmup_steps=12
sed 's/^steps = .*/epochs = 1/' small.ini >epochs.ini
refused "a decay longer than the epochs" 'optim.decay_steps: 100000 .* run.epochs' "$dtrain" epochs.ini run.name=bad \
    optim.schedule=wsd optim.decay_steps=100000
override "a model too large for any machine" 'choose a smaller model' model.d_model=1048576 model.expand=64 model.n_layer=4096
refused "activations too large for any machine" 'more memory than any machine has' "$dtrain" --check small.ini data.train=synthetic:random data.val= \
    data.seq_len=2147483647 model.d_model=1048576 model.expand=64
"$dtrain" small.ini run.name=bad model.d_model=65536 model.n_layer=64 >large.log 2>&1
check "a model too large for this machine: exit code 3" test $? -eq 3
check "a model too large for this machine: $(cat large.log)" grep -qE \
    'training needs [0-9.]+ GiB of memory, and the machine has [0-9.]+ GiB, without swap; most of it for optimizer states' large.log
override "more layers than any model" 'model.n_layer: 65536 is out of range .*from 1 to 4096' model.n_layer=65536
override "steps and epochs missing" 'run.steps' run.steps=0
refused "a misspelt environment variable" 'DTRAIN_RUN__STEPP.*' env DTRAIN_RUN__STEPP=3 "$dtrain" small.ini run.name=bad
refused "a bad value in the environment" 'DTRAIN_OPTIM__LR' env DTRAIN_OPTIM__LR=fast "$dtrain" small.ini run.name=bad
refused "no configuration file" 'absent.ini' "$dtrain" absent.ini
refused "a folder as configuration file" 'data' "$dtrain" data
refused "an unknown option" '--frobnicate' "$dtrain" --frobnicate
refused "a rank count that does not divide" 'data.batch.*8.*3 ranks' env "${local_mpirun[0]}" "${local_mpirun[@]:1}" \
    -np 3 "$dtrain" small.ini run.name=bad
override "a micro-batch that does not divide" 'data.micro_batch: 3 .*2 and 4' data.micro_batch=3
override "all errors at once, the first" 'optim.lr' optim.lr=x data.batch=y
check "all errors at once, the second" grep -q 'data.batch' err.log

# Shards, some of them good ones with bytes cut or changed.
data "no shard matches" 'nothing-\*.h5' 'data/nothing-*.h5'
mkdir shards
shard=$(ls data/train-*.h5 | head -n 1)
head -c 5000 "$shard" >shards/truncated.h5
data "truncated" 'shards/truncated.h5' shards/truncated.h5
printf 'not HDF5 at all, but long enough to be looked at' >shards/text.h5
data "not HDF5" 'shards/text.h5' shards/text.h5
: >shards/empty.h5
data "empty file" 'shards/empty.h5' shards/empty.h5
mkdir shards/folder.h5
data "a folder" 'shards/folder.h5' shards/folder.h5
cp "$shard" shards/flipped.h5
printf '\377' | dd of=shards/flipped.h5 bs=1 seek=$(($(stat -c %s "$shard") / 2)) conv=notrunc status=none
data "a flipped byte: the checksum reports it" 'shards/flipped.h5.*(checksum|hash|xxh64)' shards/flipped.h5
check "verify finds the flipped byte" bash -c "'$dtrain' verify shards/flipped.h5 >/dev/null 2>&1; test \$? -eq 2"
override "a token outside the vocabulary" 'model.vocab_size|vocab' model.vocab_size=100
override "too few windows" 'windows' data.batch=100000
for kind in two-dimensional float signed short absent; do
    "$shard_tool" wrong shards/$kind.h5 $kind || exit 1
    data "$kind" "shards/$kind.h5|too short|windows" shards/$kind.h5
done

"$shard_tool" wrong shards/short-chunk.h5 short-chunk || exit 1
data "a chunk that decodes to too few bytes" 'shards/short-chunk.h5: chunk 1 of /tokens' shards/short-chunk.h5
refused "dtrain verify of that chunk" '1 of 1 failed' "$dtrain" verify shards/short-chunk.h5
# 256 MiB are kept decoded.
"$shard_tool" zeros shards/kept.h5 256 $((1 << 20)) && "$shard_tool" zeros shards/large.h5 257 $((1 << 20)) || exit 1
chunks() { # shard, overrides …: how often its chunks are warned of
    "$dtrain" --check small.ini data.train=shards/"$1".h5 data.val= "${@:2}" 2>&1 >chunks.log | grep -c 'compressed chunks of 1024 KiB'
}
check "compressed chunks larger than windows are reported" test "$(chunks large data.block=1)" -eq 1
check "… not with large blocks" test "$(chunks large data.block=700)" -eq 0
check "… not in the order of the file" test "$(chunks large data.block=1 data.shuffle=false)" -eq 0
check "… not where all are kept" test "$(chunks kept data.block=1)" -eq 0
check "what is kept is in the memory plan" grep -q 'decoded chunks .*256' chunks.log
cp "$shard" shards/no-starts.h5
"$shard_tool" drop shards/no-starts.h5 doc_starts || exit 1
data "missing document starts" 'shards/no-starts.h5: /doc_starts is missing' shards/no-starts.h5
refused "dtrain verify of that shard" '1 of 1 failed' "$dtrain" verify shards/no-starts.h5

# Model directories and checkpoints.
damaged() { # name: a copy of the good checkpoint to damage
    rm -rf "models/$1"
    mkdir -p models
    cp -r $good "models/$1"
}
model() { # description, pattern, directory
    refused "$1" "$2" "$dtrain" small.ini run.name=bad run.init_from="$3"
    refused "$1 (resume)" "$2" "$dtrain" small.ini run.name=bad run.resume="$3"
}
model "a missing model" 'models/absent' models/absent
damaged cut
truncate -s 1000 models/cut/model.safetensors
model "truncated weights" 'models/cut' models/cut
damaged no-config
rm models/no-config/config.json
model "no config.json" 'models/no-config' models/no-config
damaged shape
refused "another shape" 'model.d_model.*64.*32' "$dtrain" small.ini run.name=bad run.init_from=models/shape model.d_model=64
damaged long-header
rm models/long-header/MANIFEST # as in any Hugging Face directory
printf '\377\377\377\377\377\377\377\177' | dd of=models/long-header/model.safetensors bs=1 conv=notrunc status=none
refused "a header longer than the file" 'models/long-header/model.safetensors' "$dtrain" small.ini run.name=bad \
    run.init_from=models/long-header
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n' >models/long-header/model.safetensors
refused "a Git LFS pointer" 'model.safetensors is a Git LFS pointer' "$dtrain" small.ini run.name=bad run.init_from=models/long-header
hostile() { # name, header: a safetensors file of this header and 8 bytes of data
    damaged "$1"
    rm "models/$1/MANIFEST"
    local length=${#2}
    {
        printf "\\x$(printf %02x $((length % 256)))\\x$(printf %02x $((length / 256)))\\0\\0\\0\\0\\0\\0"
        printf '%s' "$2"
        printf '\0\0\0\0\0\0\0\0'
    } >"models/$1/model.safetensors"
    refused "hostile header: $1" "models/$1/model.safetensors" "$dtrain" small.ini run.name=bad run.init_from="models/$1"
}
hostile past-end '{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'
hostile negative '{"a":{"dtype":"F32","shape":[-2],"data_offsets":[-8,0]}}'
hostile overlap '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
hostile overflow '{"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]}}'
hostile not-json '{"a":'
hostile nested "$(printf '[%.0s' {1..3000})"
# A flipped byte in the weights of a named checkpoint: every number still looks plausible.
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
    refused "resuming from a FIFO for $file" "models/fifo" timeout 60 "$dtrain" small.ini run.name=bad run.resume=models/fifo
done
mkfifo fifo.ini
refused "a FIFO as configuration file" 'fifo.ini is not a regular file' timeout 60 "$dtrain" fifo.ini
refused "resuming from a checkpoint that does not verify" 'trainer.json' "$dtrain" small.ini run.name=bad run.resume=models/manifest

# Keys that fix the order or the model must not change on resume; every difference is reported.
refused "another order on resume" 'seq_len' "$dtrain" small.ini run.name=good data.seq_len=24 run.steps=20
refused "another batch on resume" 'data.batch is 4, the checkpoint has 8' "$dtrain" small.ini run.name=good data.batch=4 run.steps=20
refused "another seed on resume" 'seed' "$dtrain" small.ini run.name=good run.seed=5 run.steps=20
refused "another model on resume" 'model.n_layer' "$dtrain" small.ini run.name=good model.n_layer=3 run.steps=20
refused "another epsilon on resume" 'model.norm_eps.*0.001.*1e-05' "$dtrain" small.ini run.name=good model.norm_eps=1e-3 \
    run.steps=20
refused "other data on resume" 'val-00000.h5|shard' "$dtrain" small.ini run.name=good data.train='data/val-*.h5' run.steps=20

mkdir changed && cp data/val-00000.h5 "changed/$(basename "$shard")" # of the same name, with other tokens
refused "shards changed since the checkpoint" 'data.train: shard 1, train-00000.h5, has' "$dtrain" small.ini run.name=good \
    data.train='changed/train-*.h5' run.steps=20

# A name that two runs share: what is trained is not said to be what was asked for, nor written down.
cp runs/good/config.resolved.ini trained.ini
refused "other settings of a run that is trained" "runs/good is already trained this far, with other settings" "$dtrain" small.ini \
    run.name=good optim.lr=1e-3 run.steps=4 comm.dtype=bf16 comm.timeout_s=99
check "… naming each" grep -q "optim.lr was '3e-3', now it is '1e-3'" err.log
check "… the rounding of gradients" grep -q "comm.dtype was 'fp32', now it is 'bf16'" err.log
check "… no setting that changes nothing" bash -c '! grep -q timeout_s err.log'
check "… and the steps" grep -q "run.steps was '5', now it is '4'" err.log
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
refused "dtrain sample of a missing model" 'models/absent' "$dtrain" sample models/absent
refused "a folder of runs in place of a run" 'hint: give a checkpoint' "$dtrain" sample runs
refused "no checkpoint to resume from" 'hint: give the folder of a checkpoint' "$dtrain" small.ini run.resume=runs/good
check "dtrain export of a run's newest checkpoint" "$dtrain" export runs/good exported
check "… its weights" cmp exported/model.safetensors $good/model.safetensors
refused "a fraction of a token" '--tokens: .1.5. is not a whole number' "$dtrain" sample $good --tokens 1.5
refused "a temperature that is not a number" '--temperature: .nan. is not a plain decimal number .allowed: a number from 0 to 100' "$dtrain" sample $good --temperature nan
refused "all data for validation" '--val: 1 is out of range' "$dtrain" pack -o packed --val 1 "$repository/src/model"
refused "a benchmark with batch 0" '--batch: 0 is out of range' "$dtrain" bench --step --batch 0
refused "packing nothing" 'absent' "$dtrain" pack -o packed absent
refused "packing over shards" 'data' "$dtrain" pack -o data "$repository/src/model"

# None of this breaks a later good run.
check "a good run in the folder of the bad ones" "$dtrain" small.ini run.name=bad run.steps=5
check "… with the same bits" same_bits runs/bad/checkpoints/step-00000005 $good
finish
