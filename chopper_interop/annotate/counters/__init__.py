"""Hardware counters: dispatches of counter passes matched, and metrics derived from counters."""
