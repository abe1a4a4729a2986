"""Clocks of kernels by the readings of a sensor whose window and delay are given, known, or estimated.

`clock_sensor` has readings; `sensor_fit` and `series_windows` say which windows and delays agree with them;
`expected_clocks` spreads readings over kernels, by `kernel_windows`, `step_changes` and `followed_share`;
`mean_sensitivity` is what readings and speeds show of all kernels together; `kernel_clocks` has the result.
"""
