"""Print the ranks for which others wait in collectives: ``python late.py RUN/``."""

import sys

import pandas as pd

import chopper_interop as ci


def waits(trace: ci.Trace) -> pd.DataFrame:
    """Return for each rank how often it started last, and how long it waited for others."""
    columns = ["kind", "rank", "instance", "ts"]
    members = trace.to_pandas(columns=columns).query("kind == 'comm' and instance.notna()")
    last = members.groupby("instance")["ts"].transform("max")
    table = members.assign(waited_ns=last - members["ts"], came_last=members["ts"] == last)
    return table.groupby("rank")[["came_last", "waited_ns"]].sum()


if __name__ == "__main__":
    print(waits(ci.read(*sys.argv[1:])).to_string())
