"""Methods that several analyses share: the model of time, clocks and power, other tools' definitions."""
