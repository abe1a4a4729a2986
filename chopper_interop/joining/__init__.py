"""One job: what several files tell of the same run, put together."""
