# Files of episodes written by h5py as robomimic, Minari and D4RL write theirs, and whether
# read_windows (argv[1]) gives every number of them. Writes robomimic.hdf5, minari.hdf5 and
# d4rl.hdf5 into the current folder.
import json
import subprocess
import sys

import h5py
import numpy as np

T, rng, failures = 20, np.random.default_rng(7), 0


def arrays(n):
    """Numbers of n frames, and a task: the actions follow from the frame before."""
    eef = rng.normal(2, 3, (n, 3))
    gripper = rng.normal(0, 1, (n, 2))
    action = np.zeros((n, 3))
    action[1:, :2] = eef[:-1, :2] * 0.1
    action[1:, 2] = gripper[:-1, 0]
    return {"eef": eef, "gripper": gripper, "stage": rng.integers(0, 5, n),
            "image": rng.integers(0, 256, (n, 4, 5, 3), dtype=np.uint8), "action": action}


def expected(episodes, stride):
    """frames (eef, image[7:9]), ids (stage), targets, mask, reset of every window."""
    for e in episodes:
        n = len(e["action"])
        frames = np.hstack([e["eef"], e["image"].reshape(n, -1)[:, 7:9]]).astype("<f4")
        first = 0
        while True:
            window = slice(first, min(first + T, n))
            length = window.stop - window.start
            def padded(x, dtype):
                out = np.zeros((T, *x.shape[1:]), dtype)
                out[:length] = x[window]
                return out.tobytes()
            mask = np.arange(T) < length
            reset = (np.arange(T) == 0) & (first == 0)
            yield (padded(frames, "<f4") + padded(e["stage"], "<i4") + padded(e["action"], "<f4") +
                   mask.astype("u1").tobytes() + reset.astype("u1").tobytes())
            if first + T >= n:
                break
            first += stride


def compare(what, path, inputs, targets, episodes, stride, mask="", *layout):
    global failures
    got = subprocess.run([sys.argv[1], path, inputs, targets, str(T), str(stride), mask, *layout],
                         stdout=subprocess.PIPE, check=True).stdout
    want = b"".join(expected(episodes, stride))
    print("%s, stride %d: %d bytes %s" % (what, stride, len(want),
                                          "agree" if got == want else "DIFFER"))
    failures += got != want


lengths = [40, 1, 20, 57, 21, 19, 33, 80, 64, 5, 20, 47]

# robomimic: float64 throughout, images compressed, masks of fixed strings, attributes.
demos = [arrays(n) for n in lengths]
with h5py.File("robomimic.hdf5", "w") as f:
    data = f.create_group("data")
    for i, demo in enumerate(demos):
        g = data.create_group("demo_%d" % i)
        n = len(demo["action"])
        g.create_dataset("actions", data=demo["action"])
        g.create_dataset("states", data=rng.normal(size=(n, 45)))
        g.create_dataset("rewards", data=np.zeros(n))
        g.create_dataset("dones", data=np.zeros(n, dtype=np.int64))
        for obs in "obs", "next_obs":
            for key in "eef", "gripper", "stage", "image":
                compression = {"compression": "gzip"} if key == "image" else {}
                g.create_dataset("%s/%s" % (obs, key), data=demo[key], **compression)
        g.attrs["num_samples"] = n
        g.attrs["model_file"] = "<mujoco model='base'/>"
    data.attrs["total"] = sum(lengths)
    data.attrs["env_args"] = json.dumps({"env_name": "Lift", "type": 1, "env_kwargs": {}}, indent=4)
    names = sorted("demo_%d" % i for i in range(len(demos)))  # sorted as strings: demo_10 comes before demo_2
    f.create_dataset("mask/train", data=np.array(names[3:], dtype="S"))
    f.create_dataset("mask/valid", data=np.array(names[:3], dtype="S"))
train = [demos[i] for i in sorted(int(name[5:]) for name in names[3:])]
for stride in 20, 7:
    compare("robomimic", "robomimic.hdf5", "obs/eef obs/image[7:9] obs/stage:id*5", "actions",
            demos, stride)
    compare("robomimic, mask", "robomimic.hdf5", "obs/eef obs/image[7:9] obs/stage:id*5", "actions",
            train, stride, "train")

# Minari: one frame more than actions, resizable datasets, nested observations, booleans.
with h5py.File("minari.hdf5", "w") as f:
    f.attrs.update({"total_episodes": len(lengths), "total_steps": sum(lengths),
                    "dataset_id": "room/test-v0", "minari_version": "0.5.1"})
    episodes = [arrays(n) for n in lengths]
    for i, e in enumerate(episodes):
        n = len(e["action"])
        g = f.create_group("episode_%d" % i)
        g.attrs.update({"id": i, "seed": 17, "total_steps": n})
        obs = g.create_group("observations")
        def put(group, key, x):
            group.create_dataset(key, data=x, maxshape=(None, *x.shape[1:]), chunks=True)
        for key in "eef", "gripper", "stage":
            put(obs, key, np.concatenate([e[key], e[key][-1:]]))
        put(obs.create_group("camera"), "_index_0", np.concatenate([e["image"], e["image"][-1:]]))
        put(g, "actions", e["action"].astype(np.float32))
        put(g, "rewards", rng.normal(size=n))
        put(g, "terminations", np.arange(n) == n - 1)
        put(g, "truncations", np.zeros(n, dtype=bool))
        g.create_group("infos").create_dataset("success", data=np.zeros(n + 1, dtype=bool))
        g["infos/eef"] = np.concatenate([e["eef"], e["eef"][-1:]])
    # Strings may exist, but are no inputs.
    f["episode_0/infos"].create_dataset("text", data=["a"] * 3, dtype=h5py.string_dtype())
compare("Minari", "minari.hdf5",
        "observations/eef observations/camera/_index_0[7:9] observations/stage:id*5", "actions",
        episodes, 20)

compare("Minari, infos", "minari.hdf5",
        "infos/eef observations/camera/_index_0[7:9] observations/stage:id*5", "actions", episodes, 20)

# D4RL: all data are compressed, flat and float32; the last episode has no end.
with h5py.File("d4rl.hdf5", "w") as f:
    episodes = [arrays(n) for n in lengths]
    total = np.cumsum(lengths)
    ends = np.isin(np.arange(total[-1]), total[:-1] - 1)
    early = np.zeros_like(ends)
    early[total[:-1:2] - 1] = True
    flat = {key: np.concatenate([e[key] for e in episodes]) for key in episodes[0]}
    for name, x in {"observations": flat["eef"].astype(np.float32),
                    "actions": flat["action"].astype(np.float32),
                    "rewards": np.zeros(total[-1], np.float32),
                    "terminals": ends & early, "timeouts": ends & ~early,
                    "infos/image": flat["image"], "infos/stage": flat["stage"].astype(np.int8),
                    }.items():
        f.create_dataset(name, data=x, compression="gzip")
    f["metadata/algorithm"] = "SAC"
compare("D4RL", "d4rl.hdf5", "observations infos/image[7:9] infos/stage:id*5", "actions",
        episodes, 11)

# Any layout: groups of groups in no order, channels x time in the chunks that h5py chooses, lzf, a
# scalar, an attribute, numpy's default integers.
with h5py.File("own.hdf5", "w") as f:
    episodes = [arrays(n) for n in lengths]
    names = ["subject_%d/trial %d" % (8 + i // 4, 7 + i % 4) for i in range(len(episodes))]
    for i in rng.permutation(len(episodes)):
        e, g = episodes[i], f.create_group(names[i])
        e["stage"][:] = i % 5
        g.attrs["stage"] = i % 5
        g.create_dataset("eef", data=e["eef"].T, compression="lzf", shuffle=True, chunks=True)
        g.create_dataset("image", data=np.moveaxis(e["image"], 0, 1), compression="gzip", chunks=True)
        g["action"] = e["action"].T
        g["rate"] = 256.0
    f["subject_8/notes"] = "none"
    f.create_group("other/trial 1")
for stride in 20, 7:
    compare("any layout", "own.hdf5", "eef image[7:9] @stage:id*5", "action", episodes, stride, "",
            "subject_*/trial *", "1")

sys.exit(failures > 0)
