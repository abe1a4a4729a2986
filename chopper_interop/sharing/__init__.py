"""What a trace says of the place where it was recorded: left out, or replaced by aliases."""
