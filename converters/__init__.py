"""Formats: one module, or one family of modules with a common first word, for each."""
