#!/usr/bin/env python3
"""wheel.py LIBRARY MODULE VERSION FOLDER: puts libdtrain_step and its Python module into a wheel (PEP 427), which
`pip install` installs side by side. The tag names the machine: the libraries that libdtrain_step needs are not in it."""
import base64
import hashlib
import platform
import sys
import zipfile

library, module, version, folder = sys.argv[1:]
tag = "py3-none-linux_" + platform.machine()
info = "dtrain_step-%s.dist-info/" % version
files = {
    "dtrain_step.py": open(module, "rb").read(),
    "libdtrain_step.so.1": open(library, "rb").read(),
    info + "METADATA": ("Metadata-Version: 2.1\nName: dtrain_step\nVersion: %s\nRequires-Python: >=3.8\n"
                        "Summary: Plays a model that dtrain trained\n" % version).encode(),
    info + "WHEEL": ("Wheel-Version: 1.0\nGenerator: dtrain\nRoot-Is-Purelib: false\nTag: %s\n" % tag).encode(),
}
digests = {name: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode() for name, data in files.items()}
record = "".join("%s,sha256=%s,%d\n" % (name, digests[name], len(files[name])) for name in files) + info + "RECORD,,\n"
path = "%s/dtrain_step-%s-%s.whl" % (folder, version, tag)
with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
    for name, data in {**files, info + "RECORD": record.encode()}.items():
        wheel.writestr(name, data)
print(path)
