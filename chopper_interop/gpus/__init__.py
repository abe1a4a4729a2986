"""GPUs: which one of one source is which of another, and what each can do."""
