"""Reader of workloads of rocprof-compute and Omniperf."""
