"""Converters: a package for each family of formats, whose `__init__` recognises them."""
