"""GPUs: matching the numbers of different sources, and what each GPU can do."""
