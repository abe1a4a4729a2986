"""Reader of rocprof (v1): tables, JSON and databases."""
