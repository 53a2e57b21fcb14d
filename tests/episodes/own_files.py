# The examples of the manual's section "Your own HDF5" (argv[1]: launch/README.md), as they stand there: runs the
# blocks of Python on made-up data, and writes own.ini and the commands, one a line, to commands.sh. Then its examples of
# weights, on train.h5 and demos.hdf5.
import re
import sys

import h5py
import numpy as np

rng = np.random.default_rng(5)
recordings = [(rng.normal(size=(64, n)).astype("f4") + np.repeat(rng.integers(0, 5, 10), n // 10),
               np.repeat(rng.integers(0, 5, 10), n // 10), i % 4)
              for i, n in enumerate([600, 900, 700, 800, 1000])]
segments = [(1e-21 * rng.normal(size=4096), rng.integers(0, 2, 4096)) for _ in range(5)]
time = np.arange(10000)
load = np.sin(time * 2 * np.pi / 24) + rng.normal(0, 0.1, len(time))
temperature = np.cos(time * 2 * np.pi / 24)

manual = open(sys.argv[1]).read()
section = re.search(r"^## Your own HDF5\n(.*?)^## ", manual, re.M | re.S).group(1)
blocks = re.findall(r"^```(\w+)\n(.*?)^```", section, re.M | re.S)
commands = []
for language, text in blocks:
    if language == "python":
        exec(text)
    elif language == "ini":
        open("own.ini", "w").write(text)
    else:
        commands.append(text.replace("\\\n", " ").strip())
open("commands.sh", "w").write("".join(command + "\n" for command in commands))

with h5py.File("train.h5", "w") as f:
    f["frames"], f["targets/stage"], f["sure"] = rng.normal(size=(600, 4)), rng.integers(0, 33, 600), rng.random(600) < 0.7
with h5py.File("demos.hdf5", "w") as f:
    for i in range(6):
        g = f.create_group("data/demo_%d" % i)
        g["obs/a"], g["actions"], g["advantage"] = rng.normal(size=(90, 3)), rng.normal(size=(90, 2)), rng.normal(size=90)
exec(re.search(r"Each of these is three lines of h5py:\n\n```python\n(.*?)^```", manual, re.M | re.S).group(1))
with h5py.File("train.h5") as f:  # classes weigh the same together, and a third of the labels is not known
    assert abs(f["weight"][:].sum() / 600 - 1) < 1e-6 and 100 < (f["targets/stage"][:] == -100).sum() < 300
with h5py.File("demos.hdf5") as f:
    assert all(demo["weight"].shape == (90,) for demo in f["data"].values())
