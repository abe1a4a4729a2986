"""Memory that reading telemetry takes: that of its text and its samples, not of all that is known of each number."""

import tracemalloc
from pathlib import Path

import pytest

import chopper_interop as ci
from chopper_interop.converters.sampling import pieces

T = 1_786_553_852
MOST = 1.3
"""Bytes for each of the file, twice, and of the samples. It was 1.4 and 2.5 when all numbers of a text were kept to its end."""


def amd_smi(ticks: int) -> str:
    head = "timestamp,gpu,gfx_activity,umc_activity,vcn_activity,socket_power,gfx_0_clk,hotspot\n"
    rows = (
        f'{T + t},{gpu},{t % 97},{t % 89},"[0, 0, 0, 0]",{300 + t % 401},{900 + t % 1201},{40 + t % 50}\n'
        for t in range(ticks)
        for gpu in range(8)
    )
    return head + "".join(rows)


def rocm_smi(ticks: int) -> str:
    head = (
        "device,Temperature (Sensor junction) (C),Average Graphics Package Power (W),GPU use (%)\n"
    )
    rows = [
        "".join(f"card{gpu},{40 + t % 50}.0,{300 + t % 401}.5,{t % 97}\n" for gpu in range(8))
        for t in range(ticks)
    ]
    return "".join(f"{T + t}\n{head}{of_tick}\n" for t, of_tick in enumerate(rows))


@pytest.mark.parametrize(("made", "name"), [(amd_smi, "a.csv"), (rocm_smi, "b.csv")])
def test_memory_is_that_of_text_and_samples(made, name, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(pieces, "WINDOW_BYTES", 1 << 16)
    path = tmp_path / name
    path.write_text(made(50))
    ci.read(path)  # what is kept of the first time
    path.write_text(made(8000))
    tracemalloc.start()
    try:
        trace = ci.read(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MOST * (2 * path.stat().st_size + trace.samples.nbytes)
