"""Writer of Perfetto traces."""
