"""Reader of rocprofv2."""
