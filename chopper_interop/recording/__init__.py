"""Recording of telemetry while a program runs: every GPU of the node, its host, and the program's processes.

- `amd`, `nvidia`: the vendors' libraries, which are optional
- `sampler`: a thread for each vendor that writes a row for each GPU and tick
- `host`: processors, memory, and the processes of the program by rank
- `program`: the program, to which signals are passed on
- `preparation`: what makes PyTorch's profiler and rocprofv3 write profiles that join well
- `session`: all of it, and the file that describes the recording

`chopper_interop.converters.amd_smi.recorder_samples` reads the rows.
"""
