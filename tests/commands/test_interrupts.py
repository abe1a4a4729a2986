"""Ctrl-C and SIGTERM: one line and status 130, wherever and however often they come."""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from chopper_interop.reading import processes

LINE = "chopper-convert: interrupted; each output is complete, or as it was before\n"
BEGIN = (
    "import os, signal, sys, time\n"
    "from chopper_interop import cli\n"
    "from chopper_interop.commands import common, interrupts\n"
    "signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it\n"
    "def interrupt(number=signal.SIGINT): os.kill(os.getpid(), number)\n"
)
END = "\ncli.convert.run = act\ncommon.exit_now(cli.convert_main(['a', '-o', 'b.pftrace']))\n"
PLACES = {
    "a finalizer": (
        "class Object:\n"
        "    def __del__(self): interrupt()\n"
        "def act(args):\n"
        "    Object()\n"
        "    time.sleep(600)\n"
    ),
    "a callback of C": (
        "import ctypes\n"
        "call = ctypes.CFUNCTYPE(None)(interrupt)\n"
        "def act(args):\n"
        "    call()\n"
        "    time.sleep(600)\n"
    ),
    "a callback of a weak reference": (
        "import weakref\n"
        "class Object: pass\n"
        "def act(args):\n"
        "    thing = Object()\n"
        "    reference = weakref.ref(thing, lambda _: interrupt())\n"
        "    del thing\n"
        "    time.sleep(600)\n"
    ),
    "while an error is shown": (
        "def show(*args, **options): interrupt()\n"
        "common.show_error = show\n"
        "def act(args): raise ValueError\n"
    ),
    "as a compiled loop returns": (
        "from chopper_interop import registry\n"
        "def act(args):\n"
        "    with registry.as_errors('reading', 'kineto'):\n"
        "        try: interrupt()\n"
        "        except KeyboardInterrupt as error: raise SystemError('result with an exception set') from error\n"
    ),
    "a call of machine code, which does not look whether it raised": (
        "import ctypes, pickle\n"
        "from chopper_interop.arrays import loaded_code\n"
        "class Type:\n"
        "    def __reduce__(self): return interrupt, ()\n"
        "data = pickle.dumps(Type())\n"
        "def act(args):\n"
        "    address = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p)\n"
        "    assert loaded_code._unpickle(address, len(data), None) is None\n"
        "    time.sleep(600)\n"
    ),
    "twice": "def act(args):\n    try: interrupt()\n    finally: interrupt()\n",
    "by both signals": (
        "def act(args):\n    try: interrupt(signal.SIGTERM)\n    finally: interrupt()\n"
    ),
    "while the line is printed": (
        "class Stream:\n"
        "    def write(self, text): interrupt(); sys.__stderr__.write(text)\n"
        "    def flush(self): sys.__stderr__.flush()\n"
        "def act(args):\n"
        "    sys.stderr = Stream()\n"
        "    interrupt()\n"
    ),
    "while the process ends": (
        "def act(args):\n"
        "    interrupts_end = interrupts.end\n"
        "    def end(): interrupts_end(); interrupt()\n"
        "    interrupts.end = end\n"
        "    interrupt()\n"
    ),
}


def ended(code: str) -> tuple[int, str]:
    """Status and messages of a process; one that is not interrupted sleeps until the test fails."""
    command = [sys.executable, "-c", BEGIN + code + END]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stderr


@pytest.mark.parametrize("place", PLACES)
def test_an_interrupt_ends_the_command_wherever_it_comes(place: str) -> None:
    """In finalizers and callbacks Python ignores it, and prints a traceback."""
    status, messages = ended(PLACES[place])
    assert (status, messages) == (130, LINE)


def test_a_later_one_ends_a_command_that_does_not_end() -> None:
    act = (
        "def act(args):\n"
        "    interrupts._PATIENCE_S = 0.1\n"
        "    try: interrupt()\n"
        "    finally:\n"
        "        time.sleep(0.2)\n"
        "        interrupt()\n"
        "        time.sleep(600)\n"
    )
    status, messages = ended(act)
    assert (status, messages) == (130, "")


def test_what_else_python_ignores_is_one_line() -> None:
    act = (
        "class Object:\n"
        "    def __del__(self): raise ValueError('made\\n\\x1b[31m')\n"
        "def act(args):\n"
        "    Object()\n"
        "    return 0\n"
    )
    assert ended(act) == (0, "ignored: ValueError: made  [31m\n")


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="Windows")
def test_an_interrupt_of_the_terminal_does_not_reach_processes_that_start() -> None:
    """While they import, each would print a traceback."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        with processes._interrupts_blocked():
            blocked = pool.submit(signal.pthread_sigmask, signal.SIG_BLOCK, ())
        assert signal.SIGINT in blocked.result()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
