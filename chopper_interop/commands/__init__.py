"""Parts of the commands: options, plans of analyses, and tables on the terminal."""
