"""Times at other core clocks: how kernels follow the clock, and the job timed anew."""
