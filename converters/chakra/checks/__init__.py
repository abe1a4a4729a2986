"""Checks of ETs, by what they look at."""
