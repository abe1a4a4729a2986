"""Several runs in one table, a row each."""
