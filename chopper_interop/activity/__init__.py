"""GPU work within windows, and when there is none: what most analyses are made of."""
