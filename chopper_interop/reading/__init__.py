"""Reading of sources: the unit of work, where it is done, and where its files lie.

::

    SourceFiles ─▶ SourceTask ─ executor: threads │ processes │ dask │ any of concurrent.futures ─▶ Trace

The unit of work is one source, which is nearly always one rank. An executor has the shape of
`concurrent.futures.Executor`; results are taken in the order of the sources, so that outputs do not depend on
where or in which order they were read. What a worker cannot read is an error of that source, as if it had been
read here. A worker that ends before its result is there costs a further attempt.
"""
