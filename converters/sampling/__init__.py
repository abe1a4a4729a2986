"""Parts that the readers of all samplers share: cells, units, times, lanes."""
