"""Times at other core clocks: sensitivity of kernels to the clock, and the re-timed job."""
