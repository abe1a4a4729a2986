"""Causes that make a step longer than it need be: what each finding is, and how it is detected."""
