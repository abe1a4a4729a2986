"""What names tell, whatever format they stand in."""

from __future__ import annotations

import re

COMM_KERNEL = re.compile(r"(void\s+|_Z\d+)?(nccl|rccl|msccl)", re.IGNORECASE)
"""How the names of kernels that communicate begin, mangled or not; use `match`. RCCL calls all
of them ``ncclDevKernel_Generic…``."""
