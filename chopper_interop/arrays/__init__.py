"""Columns: to Arrow and back, operations on them, compiled loops over them; no formats."""
