"""Power of GPUs by what runs and by the clock: fitted, capped, exceeded."""
