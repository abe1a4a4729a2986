"""Units of time and their lengths."""

NS_PER_UNIT = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
"""Nanoseconds of each unit, the longest first."""

KINETO_BASE_NS = 7_889_238 * 10**9
"""PyTorch's traces count from a multiple of this: three months as C++ counts them (libkineto's ``output_json.h``)."""
