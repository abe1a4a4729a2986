"""Other tools' definitions of the same figures, for `compat=`."""
