"""Writes the seeds of fuzz_hdf5 into the folder argv[1]: shards of every layout, small, as h5py writes them.

The start of a name is the layout, by which fuzz_hdf5 chooses the configuration. Those with "new" are in the newest
format that HDF5 1.10 reads, with checksums over its metadata. Needs h5py, numpy and xxhash.
"""
import os
import sys

import h5py
import numpy as np
import xxhash

OLD, NEW = ("earliest", "v110"), ("v110", "v110")
rng = np.random.default_rng(11)


def shard(name, libver=OLD):
    return h5py.File(os.path.join(sys.argv[1], name + ".h5"), "w", libver=libver)


def tokens(n=256, dtype="<u2"):
    return rng.integers(0, 64, n).astype(dtype)


def compact(group, name, data):
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.COMPACT)
    space = h5py.h5s.create_simple(data.shape)
    dataset = h5py.h5d.create(group.id, name.encode(), h5py.h5t.py_create(data.dtype), space, properties)
    dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, data)


def add_checksums(f, kind, block):
    data = f["tokens"][:].tobytes()
    hashes = [getattr(xxhash, kind)(data[i : i + block]).intdigest() for i in range(0, len(data), block)]
    name = {"xxh3_64": "tokens_xxh3", "xxh64": "tokens_xxh64"}[kind]
    f.create_dataset(name, data=np.array(hashes, "<u8")).attrs["block_bytes"] = np.int64(block)


def add_starts(f, **how):
    starts = np.array([0, 5, 90, 91, 200], "<u8")
    f.create_dataset("doc_starts", data=starts, **how)
    f["tokens"].attrs["doc_starts_count"] = np.uint64(len(starts))
    f["tokens"].attrs["doc_starts_xxh3"] = np.uint64(xxhash.xxh3_64(starts.tobytes()).intdigest())


def token_shards():
    for label, libver in ("old", OLD), ("new", NEW):
        with shard("tokens-plain-" + label, libver) as f:
            f["tokens"] = tokens()
            f["tokens"].attrs["vocab_size"] = 64
        with shard("tokens-sums-" + label, libver) as f:
            f.create_dataset("tokens", data=tokens(), chunks=(64,), compression="gzip")
            add_starts(f)
            add_checksums(f, "xxh3_64", 128)
        with shard("tokens-growing-" + label, libver) as f:
            f.create_dataset("tokens", data=tokens(dtype="<i4").astype("<u4"), chunks=(32,), maxshape=(None,),
                             fletcher32=True, shuffle=True)
            add_starts(f, maxshape=(None,), chunks=(2,))
            add_checksums(f, "xxh64", 256)
        with shard("tokens-compact-" + label, libver) as f:
            compact(f, "tokens", tokens(96, "u1"))
        with shard("tokens-bool-" + label, libver) as f:
            f["tokens"] = tokens() > 31
        with shard("tokens-virtual-" + label, libver) as f:
            layout = h5py.VirtualLayout((256,), "<u2")
            layout[:128] = h5py.VirtualSource("other.h5", "tokens", (128,))
            f.create_virtual_dataset("tokens", layout)
        with shard("tokens-external-" + label, libver) as f:
            f.create_dataset("tokens", (64,), "<u2", external=[("/etc/hostname", 0, 128)])


def pair_shards():
    ids = tokens(96, "<i4").reshape(12, 8)
    with shard("pairs-old") as f:
        f["input_ids"], f["labels"] = ids, np.where(ids % 5 == 0, -100, ids)
    with shard("pairs-new", NEW) as f:
        f.create_dataset("input_ids", data=ids, chunks=(4, 8), compression="gzip", fletcher32=True)
        f.create_dataset("labels", data=ids, chunks=(5, 3), maxshape=(None, None))


def numbers(n, width, dtype="<f4"):
    return rng.normal(size=(n, width)).astype(dtype)


def native_shards():
    with shard("episodes-old") as f:
        f["frames"], f["targets/go"] = numbers(40, 3), numbers(40, 2)
        f["episode_starts"] = np.array([0, 1, 17, 30], "<u8")
    with shard("episodes-new", NEW) as f:
        f.create_dataset("frames", data=numbers(40, 3), chunks=(9, 3), compression="gzip", maxshape=(None, 3))
        compact(f.create_group("targets"), "go", numbers(40, 2, "<f8"))
        f["episode_starts"] = np.array([0, 1, 17, 30], "<i8")
    with shard("episodes-bool-old") as f:
        f["frames"], f["targets/go"] = numbers(20, 3) > 0, numbers(20, 2)


def add_demo(group, n, **how):
    group.create_dataset("actions", data=numbers(n, 2, "<f8"))
    group["obs/eef"] = numbers(n, 3, "<f8")
    group.create_dataset("obs/image", data=rng.integers(0, 256, (n, 2, 3, 1), np.uint8), **how)
    group["obs/grasped"] = numbers(n, 1)[:, 0] > 0
    group["dones"] = np.zeros(n, np.int64)
    group.attrs["num_samples"] = n


def robomimic_shards():
    with shard("robomimic-old") as f:
        for i in range(3):
            add_demo(f.create_group("data/demo_%d" % i), 9 + i, compression="gzip")
        f["mask/train"] = np.array(["demo_0", "demo_2"], "S")
        f["mask/valid"] = np.array(["demo_1"], "S")
    with shard("robomimic-text-old") as f:
        add_demo(f.create_group("data/demo_0"), 20)
        f.create_dataset("mask/train", data=["demo_0"], dtype=h5py.string_dtype())
        f["data"].attrs["env_args"] = '{"env_name": "Lift"}'
    with shard("robomimic-dense-new", NEW) as f:
        for i in range(10):
            group = f.create_group("data/demo_%d" % i)
            group["actions"], group["obs/eef"] = numbers(4, 2), numbers(4, 3)
        f.create_dataset("mask/train", data=["demo_%d" % i for i in range(9)], dtype=h5py.string_dtype())
    with shard("robomimic-new", NEW) as f:
        add_demo(f.create_group("data/demo_0"), 20, compression="gzip")
        for i in range(9):
            f["data/demo_0/obs/k%d" % i] = numbers(20, 1)
            f["data/demo_0"].attrs["a%d" % i] = i
        f["mask/train"] = np.array(["demo_0"], "S")
    with shard("robomimic-external-old") as f:
        add_demo(f.create_group("data/demo_0"), 20)
        f.create_dataset("mask/train", (1,), "S6", external=[("/etc/hostname", 0, 6)])
        f["data/demo_0/obs/far"] = h5py.ExternalLink("other.h5", "/actions")
        f["data/demo_0/obs/near"] = h5py.SoftLink("/data/demo_0/actions")
    with shard("robomimic-hard-links-new", NEW) as f:
        add_demo(f.create_group("data/demo_0"), 20)
        deep = f["data/demo_0/obs"]
        for _ in range(27):  # 2^27 paths
            below = deep.create_group("a")
            deep["b"] = below
            deep = below


def minari_shards():
    for label, libver, episodes in ("old", OLD, 2), ("new", NEW, 2), ("dense-new", NEW, 10):
        with shard("minari-" + label, libver) as f:
            f.attrs["total_episodes"] = episodes
            for i in range(episodes):
                n, g = 9 + i, f.create_group("episode_%d" % i)
                g.attrs.update({"id": i, "total_steps": n})
                growing = {} if episodes > 2 else {"chunks": True, "maxshape": (None, 3)}
                g.create_dataset("observations/eef", data=numbers(n + 1, 3), **growing)
                g["actions"] = numbers(n, 2)
                if episodes > 2:
                    continue
                g["terminations"] = np.arange(n) == n - 1
                g.create_dataset("infos/text", data=["a"] * 3, dtype=h5py.string_dtype())


def d4rl_shards():
    for label, libver in ("old", OLD), ("new", NEW):
        with shard("d4rl-" + label, libver) as f:
            for name, data in {"observations": numbers(40, 3), "actions": numbers(40, 2),
                               "terminals": np.arange(40) % 13 == 12, "timeouts": np.arange(40) == 39}.items():
                f.create_dataset(name, data=data, compression="gzip")
            f["rewards"] = np.zeros(40, "<f4")
            f["metadata/algorithm"] = "SAC"
    with shard("d4rl-plain-old") as f:
        f["observations"], f["actions"] = numbers(40, 3), numbers(40, 2)
        f["terminals"] = np.arange(40) % 13 == 12


def grouped_shards():
    for label, libver in ("old", OLD), ("new", NEW):
        with shard("groups-" + label, libver) as f:
            for i in range(3):
                n, g = 9 + i, f.create_group("subject_%d/trial_%d" % (i % 2, i))
                g.create_dataset("eeg", data=numbers(3, n), chunks=(2, 4), compression=("lzf", "gzip", None)[i])
                g["go"], g["level"] = numbers(2, n, "<f8"), float(i)
                g.attrs["gain"], g.attrs["text"] = numbers(1, 3)[0], "none"
                g["eeg"].attrs["rate"] = np.int64(i)
        with shard("groups-attributes-" + label, libver) as f:
            g = f.create_group("subject_1/trial_1")
            g["eeg"], g["go"], g["level"] = numbers(3, 20), numbers(2, 20), np.array([1.0])
            g.attrs["gain"], g["eeg"].attrs["rate"] = numbers(1, 3)[0], True
            for i in range(12):  # more than a header holds
                g.attrs["a%d" % i] = numbers(2, 4)


os.makedirs(sys.argv[1], exist_ok=True)
token_shards()
pair_shards()
native_shards()
robomimic_shards()
minari_shards()
d4rl_shards()
grouped_shards()
