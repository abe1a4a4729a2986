"""GPUs against each other: their means and places, who leads, who is slow."""
