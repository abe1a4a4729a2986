"""Times at other core clocks: sensitivity of kernels to the clock, and the re-timed job.

An ideal time comes about from top to bottom::

    samples of the clock               kernels, their durations
            |                                    |
    clocks/clock_sensor                       repeats            kernels that do the same
    clocks/sensor_fit                            |
            |  windows, delays that agree        |
    clocks/kernel_clocks                         |
            |  clock of each kernel, its error   |
            +------------------+-----------------+
                               |
                     sources/evidence                            what is known of kernels
                               |
       +-----------+-----------+-----------+-----------+
     by_law  by_other_run  by_counters  by_class    by_prior     new over measured time, errors
       |           |           |     (else by_mean)    |
       +-----------+-----------+-----------+-----------+
                               |
                     sources/combination                         by the inverses of variances
                     sources/by_mean                             all together by their mean sensitivity
                               |
                          sensitivity                            over all assumptions on the sensor
                               |
     target_clocks  ->       cases       <-  limits              durations at the clocks that are asked about
                               |
                             ideal                               all ranks re-timed, 95 % by intervals
"""
