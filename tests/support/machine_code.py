"""Compile the loops ahead, for a wheel: ``python tests/support/machine_code.py [FOLDER]``.

Runs what users run, on a sample job and on the small inputs of every format, with loops compiled for
the baseline of this kind of processor, and packs the machine code into the archive that
`chopper_interop.arrays.code_files` looks into. FOLDER keeps it between calls, so that only loops
that have changed are compiled again.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import io
import itertools
import os
import subprocess
import sys
import tempfile
import warnings
import zipfile
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MUTANTS = 4
"""Damaged inputs of each format: enough for the loops that only those reach."""
COMPATIBLE = (
    *(("hta", name) for name in ("temporal", "critical_path", "kernels", "overlap")),
    *(("tracelens", name) for name in ("temporal", "overlap")),
    *(("chopper", name) for name in ("overlap", "breakdown")),
)
"""Other tools, and analyses by their definitions."""
_OPERATORS = 160
"""Operators of the program that is joined: enough for anchors, and a gap between these."""
SOURCES = "SOURCES"
"""Member of an archive with the digest of what it was made of."""
ALLOCATIONS = 100_000
"""Objects made between two collections of garbage. Chosen: at Python's 700, collections took a tenth of compiling."""
STAMP = (1980, 1, 1, 0, 0, 0)
"""Time of all files in the archive, so that equal code gives equal archives."""


def commands(folder: Path) -> None:
    """Convert and analyse sample jobs: of data parallelism, of pipeline parallelism, as users make them."""
    from chopper_interop import cli

    def convert(arguments: list[str]) -> None:
        if cli.convert_main(arguments):  # a command that ends early leaves loops out
            raise RuntimeError(" ".join(arguments))

    def analyze(*arguments: str) -> None:
        if cli.analyze_main(["-q", *arguments, "--json"]):
            raise RuntimeError(" ".join(arguments))

    for size, name, is_first in (
        (["ranks=2", "layers=2", "steps=3", "recorder_hz=200"], "job", True),
        (["ranks=2", "layers=2", "steps=2", "pipeline=2", "event_records=True"], "stages", False),
        (["ranks=2", "layers=1"], "default", False),
    ):
        job, out = folder / name, folder / f"{name}-out"
        options = [text for option in size for text in ("-O", option)]
        convert(["-q", "--demo", str(job), *options])
        forms = (
            "{}/job.pftrace",
            "{}/full/",
            "{}/job.parquet",
            "kineto:{}/json/",
            "{}/job.graphml",
        )
        outputs = [text for form in forms for text in ("-o", form.format(out))]
        convert(["-q", str(job), *outputs])
        analyze(str(job))
        analyze(str(job), "-O", "args=none")
        again = ["-o", str(out / "again.pftrace"), "-O", "gpu_packets=yes"]
        convert(["-q", str(out / "json"), *again])
        if not is_first:  # the rest has the same columns, and calls the same loops, for each job
            continue
        for mode in ("gpu", "kernels"):
            convert(["-q", str(job), "-o", f"{out}/{mode}/", "-O", f"mode={mode}"])
        cli.check_main(["-q", str(out / "full" / job.name)])
        for form in ("job.pftrace", "full", "job.parquet"):
            convert(["-q", str(out / form), *again])
        table = str(out / "job.parquet")
        analyze(table, "all")
        analyze(table, "temporal", "energy", "--steps", "each", "--by", "rank")
        analyze(table, "compare", "--against", table)
        for tool, analysis in COMPATIBLE:
            analyze(table, analysis, "--compat", tool)
        analyze(table, "what_if", "-O", "change=scale=0.5 where kind == 'comm'")
        analyze(table, "critical_path", "temporal", "dvfs", "-o", str(out / "result.pftrace"))


def formats(folder: Path) -> None:
    """Read small inputs of every format, sound and damaged, and write those that are read."""
    import mutations
    from seeds import seeds

    import chopper_interop as ci
    from chopper_interop.errors import ChopperError

    for number, seed in enumerate(seeds()):
        for damage in range(-1, MUTANTS):
            place = folder / f"{number}" / f"{damage}"
            place.mkdir(parents=True)
            sound = mutations.Mutant(seed, seed.data, "", -1)
            made = sound if damage < 0 else mutations.mutant(seed, damage)
            with contextlib.suppress(AssertionError):
                mutations.outcome(made, place)
        place = folder / f"{number}" / "-1"
        trace = ci.read(place if seed.others else place / seed.name, **seed.options)
        for name in ("out.pftrace", "out/", "out.parquet"):
            with contextlib.suppress(ChopperError):
                ci.write(trace, place / name)


def host_programs(folder: Path) -> None:
    """Read a profile next to the host's execution trace of its program, matched by order: formats alone do not join."""
    from kineto_files import BASE, span, write
    from seeds import pytorch_et

    import chopper_interop as ci

    folder.mkdir()
    names = [f"op{n % 7}.{n % 3}" for n in range(_OPERATORS)]
    events = [span("cpu_op", name, 10 * i, 5, args={"a": 1}) for i, name in enumerate(names)]
    write(folder / "rank0.json", events, baseTimeNanoseconds=BASE)
    names[_OPERATORS // 2] = "another"  # a gap between what matches
    nodes = [
        pytorch_et.node(10 + i, name, 2, (pytorch_et.tensor(i, i),), (pytorch_et.tensor(i + 1, i + 1),))
        for i, name in enumerate(names)
    ]  # fmt: skip
    thread = pytorch_et.node(2, pytorch_et.THREAD, 1, scope=7)
    (folder / "rank0_et.json").write_bytes(pytorch_et.document([thread, *nodes]))
    trace = ci.read(folder)
    codes = {issue.code for issue in trace.meta.issues}
    if "host-et-joined-by-order" not in codes:
        raise RuntimeError(f"the program is not joined: {codes}")


def formats_and_programs(folder: Path) -> None:
    """Read inputs of every format, and those that are joined."""
    formats(folder)
    host_programs(folder / "joined")


PARTS = {"commands": commands, "formats": formats_and_programs}


def compile_part(name: str) -> None:
    """Run one part in this process, which has the environment for it; print names of loops."""
    from numba.core import bytecode

    entries = record_entries()
    first = 10**18 + 10**12 * list(PARTS).index(name)
    bytecode.FunctionIdentity._unique_ids = itertools.count(first)  # symbols have the same names
    warnings.simplefilter("ignore")
    gc.set_threshold(ALLOCATIONS)
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        PARTS[name](Path(folder))
    print("\n".join(entries))


def record_entries() -> dict[str, None]:
    """Record file names of loops that Python calls, from now on; those called by loops are in these.

    Where a loop is compiled for another one first, numba does not look for it when Python calls it: calls are recorded too.
    """
    from chopper_interop.arrays import code_files
    from chopper_interop.arrays.compiled import Loop
    from chopper_interop.arrays.numba_code import CodeCache, text_of

    load, save, call = CodeCache.load_overload, CodeCache.save_overload, Loop.__call__
    base = code_files.baseline()
    entries: dict[str, None] = {}
    compiling: list[str] = []

    def recorded_call(self, *arguments, **named):
        with contextlib.suppress(TypeError, AttributeError):  # types that only numba names
            entries[code_files.file_name(self, code_files.text_of(arguments), base.magic)] = None
        return call(self, *arguments, **named)

    def load_overload(self, signature, target):
        processor = target.codegen().magic_tuple()
        name = code_files.file_name(self.loop, text_of(signature), processor)
        if not compiling:
            entries[name] = None
        result = load(self, signature, target)
        if result is None:
            compiling.append(name)
        return result

    def save_overload(self, signature, result):
        save(self, signature, result)
        compiling.pop()

    CodeCache.load_overload, CodeCache.save_overload = load_overload, save_overload
    Loop.__call__ = recorded_call
    return entries


def environment(cache: Path) -> dict[str, str]:
    """Variables of a process that compiles for the baseline, into a folder."""
    from chopper_interop.arrays import code_files

    base = code_files.baseline()
    if base is None:
        sys.exit("no baseline for this machine: loops are compiled when they are first used")
    compiler = {"NUMBA_CPU_NAME": base.name, "NUMBA_CPU_FEATURES": ""}
    alone = {"CHOPPER_COMPILERS": "0"}  # symbols of what others compile have other names each time
    return os.environ | compiler | alone | {"XDG_CACHE_HOME": str(cache), "PYTHONHASHSEED": "0"}


def main(kept: Path) -> None:
    """Compile all parts at the same time, each with what others have compiled; pack the loops that Python calls."""
    processes = {}
    for name in PARTS:
        command = [sys.executable, __file__, "--part", name]
        processes[name] = subprocess.Popen(
            command, env=environment(kept), stdout=subprocess.PIPE, text=True
        )
    folder = kept / "chopper-interop" / "compiled"
    loops: dict[str, Path] = {}
    for part, process in processes.items():
        entries = process.communicate()[0].split()
        if process.returncode:
            sys.exit(f"the part {part} failed")
        loops |= {name: folder / name for name in entries if (folder / name).exists()}
    pack(loops)


def sources_digest() -> bytes:
    """Hash the modules of the package, which loops are made of."""
    digest = hashlib.sha256()
    for folder in ("chopper_interop", "schemas", "converters", "analyses"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest().encode()


def remove_others(folder: Path) -> None:
    """Remove archives of other sources: no loop of them would be loaded, but the wheel would hold them."""
    for path in sorted(folder.glob("*.zip")):
        with zipfile.ZipFile(path) as archive:
            is_current = SOURCES in archive.namelist() and archive.read(SOURCES) == sources_digest()
        if not is_current:
            path.unlink()
            print(f"{path.name} was made of other sources: removed")


def pack(loops: dict[str, Path]) -> None:
    """Write the archive, with numba's licence, as the machine code contains functions of numba."""
    from chopper_interop.arrays import code_files

    licence = next(p for p in metadata.files("numba") or () if p.name == "LICENSE")
    path = code_files.archive_path()
    path.parent.mkdir(exist_ok=True)
    part = path.with_suffix(".part")
    with zipfile.ZipFile(part, "w") as archive:
        members = {"LICENSE.numba": Path(str(licence.locate())), **dict(sorted(loops.items()))}
        archive.writestr(zipfile.ZipInfo(SOURCES, STAMP), sources_digest())
        for name, source in members.items():
            info = zipfile.ZipInfo(name, STAMP)
            archive.writestr(info, source.read_bytes(), zipfile.ZIP_DEFLATED, 9)
    part.replace(path)
    remove_others(path.parent)
    print(f"{path.name}: {len(loops)} loops, {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--part"]:
        compile_part(sys.argv[2])
    elif len(sys.argv) > 1:
        main(Path(sys.argv[1]).resolve())
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder))
