"""Reader of rocprofv3: CSV and JSON."""
