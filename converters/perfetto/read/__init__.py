"""Reader of Perfetto traces, its own and others'."""
