#!/usr/bin/env python3
"""Lets PyPI's torch be imported on a machine without CUDA: python3 stand_ins.py SITE_PACKAGES

PyPI's torch for Linux is linked with CUDA's libraries, gigabytes that a test on cores never calls.
This makes a library of each name that is missing, with the functions that torch asks it for; they do
nothing. For tests only. PyTorch's own index has a torch without CUDA, which needs none of this.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

CUDA = r"(?:nv|nccl|cu)\w*"


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main():
    packages = Path(sys.argv[1])
    folder = packages / "torch/lib"
    libraries = sorted(folder.glob("*.so"))
    needed, wanted = set(), {}
    for library in libraries:
        needed |= set(
            re.findall(rf"NEEDED\s+(lib{CUDA}\.so[.\d]*)", output("objdump", "-p", library))
        )
        undefined = output("nm", "-D", "--undefined-only", library)
        for name, version in re.findall(rf"^ +[Uw] ({CUDA})(?:@+(\S+))?$", undefined, re.MULTILINE):
            wanted.setdefault(version, set()).add(name)
    present = {path.name for path in [*folder.iterdir(), *packages.glob("nvidia/**/*.so*")]}
    # The driver's library is never there on a machine without GPU, and is not asked for.
    for name in sorted(needed - present - {"libcuda.so.1"}):
        version = "NVSHMEM" if "nvshmem" in name else name
        build(folder / name, wanted.get(version, set()) or wanted.get("", set()), version, wanted)


def build(path, functions, version, wanted):
    with tempfile.TemporaryDirectory() as folder:
        source, exports = Path(folder, "library.c"), Path(folder, "exports")
        source.write_text("".join(f"void {name}(void) {{}}\n" for name in sorted(functions)))
        command = ["cc", "-w", "-shared", "-fPIC", source, "-o", path, f"-Wl,-soname,{path.name}"]
        if version in wanted:
            exports.write_text(f"{version} {{ global: *; }};\n")
            command.append(f"-Wl,--version-script={exports}")
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
