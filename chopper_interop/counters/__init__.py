"""Hardware counters: which dispatch of a pass is which, and what is derived from them."""
