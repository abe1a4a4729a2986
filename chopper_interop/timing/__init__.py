"""The timing model: when each node starts and ends, and why not sooner; least latencies."""
