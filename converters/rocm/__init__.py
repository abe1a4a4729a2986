"""Parts that the readers of all ROCm profilers share: rocprof, rocpd and rpd."""
