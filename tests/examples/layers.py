"""Print GPU time and energy by layer and phase: ``python layers.py RUN/``."""

import sys

import pandas as pd

import chopper_interop as ci


def by_layer(trace: ci.Trace) -> pd.DataFrame:
    """Return time, clock, FLOP/s and energy of kernels by layer and phase, the longest first."""
    columns = ["kind", "layer", "phase", "dur", "gfxclk_mhz", "flops", "energy_j"]
    kernels = trace.to_pandas(columns=columns).query("kind == 'kernel'")
    kernels = kernels.assign(cycles=kernels["dur"] * kernels["gfxclk_mhz"])
    groups = kernels.groupby(["layer", "phase"], dropna=False, observed=True)
    table = groups[["dur", "cycles", "flops", "energy_j"]].sum(min_count=1)  # null if unknown
    table.insert(0, "kernels", groups.size())
    table = table.rename(columns={"dur": "time_ns"})
    table["clock_mhz"] = table.pop("cycles") / table["time_ns"]
    table["tflop_s"] = table.pop("flops") / table["time_ns"] / 1e3
    return table.sort_values("time_ns", ascending=False)


if __name__ == "__main__":
    print(by_layer(ci.read(*sys.argv[1:])).to_string())
