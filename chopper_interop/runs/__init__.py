"""Several runs beside each other, a row each."""
