"""One clock: what relates the clocks of sources, ranks, hosts and telemetry."""
