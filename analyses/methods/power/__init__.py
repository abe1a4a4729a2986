"""Power of GPUs by their work and the clock: models, caps, limits and excursions."""
