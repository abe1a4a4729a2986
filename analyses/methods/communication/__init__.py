"""Matched communication: who waited for whom, sizes and bandwidths, pipelines and groups."""
