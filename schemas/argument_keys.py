"""Names of the arguments that columns of a trace are made of, in files of any format.

Where arguments are left out (``-O args=none``) all others go before these are looked into; `tests/reading/test_no_arguments.py`
says which names are looked for and missing here.
"""

from chopper_interop.schemas import names

OF_FILES = (
    "correlation", "correlation_raw", "device", "stream", "bytes", "size", "rank", "pid_raw", "grid", "block",
    "Collective name", "dtype", "In msg nelems", "Out msg nelems", "Group size", "Rank", "Src Rank", "Dst Rank", "Seq",
    "Process Group Name", "Process Group Description", "Process Group Ranks", "Global rank start", "Global rank stride",
)  # fmt: skip
"""Names that readers of trace events look for, in addition to `OF_JOBS`: of nodes of a trace, columns have it."""
OF_RANGES = ("External id",)
"""Names that are looked for in ranges of the program on hosts and GPUs, which they match."""
OF_JOBS = (
    "Input Dims", "Input dims", "Input type", "Input Strides", "Output Dims", "Output type", "Concrete Inputs", "Input Values",
    "Sequence number", "ET seq_id", "Fwd thread id", "Module Hierarchy", "Record function id", "ET rf_id",
    "dispatch_id", "grid", "workgroup", "block", "grid_size", "workgroup_size",
    names.WAIT_STREAM, names.WAITED_STREAM, names.WAITED_RECORD, names.RECORD_NUMBER, names.CALL_STREAM, names.CALL_DEVICE,
    "stream", "hStream", "event", "hEvent",
)  # fmt: skip
"""Names that edges, annotations and joining look for in any node."""
ALL = tuple(dict.fromkeys((*OF_FILES, *OF_RANGES, *OF_JOBS)))
