"""Paths, slack and spans of the timing model of `chopper_interop.timing`."""
