"""Traits of the place of recording in a trace: left out, or replaced by aliases."""
