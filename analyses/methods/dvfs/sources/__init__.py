"""Sources of how much longer kernels take at another clock, each a module, and their combination.

`evidence` has what is known of kernels. ``by_…(known, target)`` is the ratio of their times by one source, with its
errors; `combination` weighs the sources. `laws` and `law_fit` fit times over clocks.
"""
