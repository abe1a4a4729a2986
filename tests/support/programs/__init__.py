"""Programs of which it is known what would have happened: written, simulated, recorded.

A program says what each host thread of each rank does, one instruction after the other (`program`). The
simulation runs it (`simulation`), as it is or changed, so that the time of the changed program is known
and not predicted. `kineto` writes what PyTorch's profiler would have recorded of a run. `families` has
random programs of many kinds. Nothing here uses the package.
"""
