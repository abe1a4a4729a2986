"""Plans of ETs, by what is planned."""
