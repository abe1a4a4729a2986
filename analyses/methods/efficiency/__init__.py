"""Efficiency of a job: energy by any grain, tokens and samples, model FLOPs."""
