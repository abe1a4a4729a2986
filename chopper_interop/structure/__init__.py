"""What of a training step each node is part of: iteration, phase, layer, module, operation."""
