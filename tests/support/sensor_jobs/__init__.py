"""Jobs whose clocks are seen through sensors, with the time that they take at the highest clock.

A `programs.Program` is a training loop of random kernels on some GPUs, and `clocks` says how the core clock of
each GPU moves. `simulation` runs the program: a kernel of work *w* and sensitivity β proceeds at the rate
1 / (1 + β·(f_max / f(t) - 1)) at the clock f(t), so that it takes *w* at f_max. Run once more with all clocks at
f_max, and with the same noise, the program gives the true length of each step. `sensors` turns the clock and the
power of a run into what a tool reads, and `files` writes what tools would have written: Kineto JSON, telemetry,
counters. `cells` has the combinations of job, rate and sensor that are of interest. No module here uses the package or
its sample job.
"""
