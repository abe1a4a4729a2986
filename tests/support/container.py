"""Build the documented image without a container engine: ``python tests/support/container.py ROOT WHEEL``.

ROOT is a root file system that holds Python alone, such as ``debootstrap --variant=minbase
--include=python3-venv,ca-certificates bookworm ROOT`` makes; as root, each RUN line of `PAGE` runs in it as a container
engine would run it. Prints processor time, wall time and the size after each, then of conversions in the image: of a sample
job, twice, the first in a cache folder that is empty.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "limits.md"
"""The page that has the image, as a block of code."""
ENVIRONMENT = {
    "HOME": "/root", "LANG": "C.UTF-8", "PATH": "/opt/image/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}  # fmt: skip
CONVERT = "chopper-convert -q /root/job -o /root/job.pftrace"
LATER = (
    ("without what the image compiled", f"XDG_CACHE_HOME=/root/empty {CONVERT}"),
    ("the same again", f"XDG_CACHE_HOME=/root/empty {CONVERT}"),
    ("in the image", CONVERT),
)


def run_lines(page: str) -> list[str]:
    """Commands of the image's RUN lines, with continued lines joined as container engines join them."""
    block = page.split("```dockerfile\n")[1].split("```", maxsplit=1)[0]
    return re.findall(r"^RUN (.*)$", block.replace("\\\n", ""), re.MULTILINE)


def measured(root: Path, command: str) -> str:
    """Run a command in a root file system; return what it took and the size after it."""
    inside = [
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        f"--mount-proc={root}/proc",
        "chroot",
        str(root),
    ]
    before, start = os.times(), time.perf_counter()
    subprocess.run([*inside, "sh", "-c", command], env=ENVIRONMENT, check=True)
    after, wall_s = os.times(), time.perf_counter() - start
    cpu_s = sum(after[2:4]) - sum(before[2:4])
    size = subprocess.run(["du", "-sxm", root], check=True, capture_output=True, text=True).stdout
    return f"{cpu_s:6.2f} s of processors, {wall_s:5.1f} s, {size.split()[0]} MB"


def main(root: Path, wheel: Path) -> None:
    """Build the image in a root file system, and convert a sample job in it."""
    shutil.copy(wheel, root / "tmp")
    for path in ("etc/resolv.conf", "etc/ssl/certs/ca-certificates.crt"):
        shutil.copy(Path("/") / path, root / path)
    print(measured(root, "python3 -m venv /opt/image"), " Python")
    for command in run_lines(PAGE.read_text("utf-8")):
        print(measured(root, command), f" RUN {command[:60]}", flush=True)
    print(measured(root, "chopper-convert -q --demo /root/job"), " sample job")
    for what, command in LATER:
        print(measured(root, command), f" {what}", flush=True)
    for cache in ("empty", ".cache"):
        loops = list((root / "root" / cache).rglob("*.nbc"))
        print(f"{len(loops)} loops were compiled in {cache}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
