"""What the commands are made of: options, questions to analyses, tables on the terminal."""
