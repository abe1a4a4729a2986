"""FLOPs and bytes of operators by their shapes, a rule for each; kinds of kernels."""
