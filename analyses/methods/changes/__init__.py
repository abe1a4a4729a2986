"""Changes to a job: how they are written, and what they do to its timing model."""
