"""Every series of telemetry over time: what is between its samples, and its figures."""
