"""Position of each node in a training step: iteration, phase, layer, module, operation."""
