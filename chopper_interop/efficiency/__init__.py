"""What energy and time are spent on: energy by any grain, tokens and samples, model FLOPs."""
