"""rpd databases as rocmProfileData writes them, schemas 2 and 3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rocpd import in_one_transaction, insert

if TYPE_CHECKING:
    from pathlib import Path

START = 3_489_389_000_000_000
PK = "id integer NOT NULL PRIMARY KEY AUTOINCREMENT"
SPAN = '"start" integer NOT NULL, "end" integer NOT NULL'
TABLES = {
    "rocpd_metadata": f"{PK}, tag varchar(4096) NOT NULL, value varchar(4096) NOT NULL",
    "rocpd_string": f"{PK}, string varchar(4096) NOT NULL",
    "rocpd_op": f"{PK}, gpuId integer NOT NULL, queueId integer NOT NULL, "
    f"sequenceId integer NOT NULL, {SPAN}, description_id integer NOT NULL, opType_id integer NOT NULL",
    "rocpd_api": f"{PK}, pid integer NOT NULL, tid integer NOT NULL, {SPAN}, "
    "apiName_id integer NOT NULL, args_id integer NOT NULL",
    "rocpd_api_ops": f"{PK}, api_id integer NOT NULL, op_id integer NOT NULL",
    "rocpd_kernelapi": "api_ptr_id integer NOT NULL PRIMARY KEY, stream varchar(18) NOT NULL, "
    + "".join(f"{w}{a} integer NOT NULL, " for w in ("grid", "workgroup") for a in "XYZ")
    + "groupSegmentSize integer NOT NULL, privateSegmentSize integer NOT NULL, kernelName_id integer NOT NULL",
    "rocpd_copyapi": "api_ptr_id integer NOT NULL PRIMARY KEY, stream varchar(18) NOT NULL, "
    "size integer NOT NULL, width integer, height integer, kind integer NOT NULL, dst varchar(18), "
    "src varchar(18), dstDevice integer, srcDevice integer, sync bool, pinned bool",
    "rocpd_op_inputSignals": f"{PK}, from_op_id integer NOT NULL, to_op_id integer NOT NULL",
    "rocpd_monitor": f"{PK}, deviceType varchar(16) NOT NULL, deviceId integer NOT NULL, "
    f"monitorType varchar(16) NOT NULL, {SPAN}, value varchar(255) NOT NULL",
}
THIRD = {
    "rocpd_ustring": f"{PK}, string varchar(4096) NOT NULL",
    "rocpd_counter": f"{PK}, value real NOT NULL, op_id bigint NOT NULL, name_id bigint NOT NULL",
}


class Base:
    """A database in the making.

    Parameters
    ----------
    path
        Where.
    schema
        2 or 3.
    """

    def __init__(self, path: Path, schema: int = 2) -> None:
        self.base = in_one_transaction(path)
        self.schema = schema
        tables = {**TABLES, **(THIRD if schema > 2 else {})}
        if schema > 2:
            tables["rocpd_api"] += ", category_id bigint NOT NULL, domain_id bigint NOT NULL"
        for name, columns in tables.items():
            self.base.execute(f'CREATE TABLE "{name}" ({columns})')
        self.add("rocpd_metadata", tag="schema_version", value=str(schema))
        self.texts: dict[tuple[str, str], int] = {}
        self.text("")

    def add(self, table: str, **cells: Any) -> int:
        """Add a row; its id."""
        return insert(self.base, table, cells)

    def text(self, text: str, table: str = "rocpd_string") -> int:
        """Id of a text."""
        if (text, table) not in self.texts:
            self.texts[text, table] = self.add(table, string=text)
        return self.texts[text, table]

    def call(
        self, name: str, start: int, end: int, text: str = "", pid: int = 9, tid: int = 9
    ) -> int:
        """Add a call; its id."""
        more = {}
        if self.schema > 2:
            more = {"category_id": self.text("api"), "domain_id": self.text("hip")}
        args = self.text(text, "rocpd_ustring" if self.schema > 2 else "rocpd_string")
        return self.add(
            "rocpd_api", pid=pid, tid=tid, start=START + start, end=START + end,
            apiName_id=self.text(name), args_id=args, **more,
        )  # fmt: skip

    def operation(
        self, kind: str, start: int, end: int, name: str = "", call: int = 0, gpu: int = 2
    ) -> int:
        """Add an operation, launched by a call; its id."""
        made = self.add(
            "rocpd_op", gpuId=gpu, queueId=1, sequenceId=0, start=START + start, end=START + end,
            description_id=self.text(name), opType_id=self.text(kind),
        )  # fmt: skip
        if call:
            self.add("rocpd_api_ops", api_id=call, op_id=made)
        return made

    def shape(self, call: int, name: str) -> None:
        """Say what a call launched."""
        axes = {f"{w}{a}": n for w, n in (("grid", 4), ("workgroup", 8)) for a in "XYZ"}
        self.add(
            "rocpd_kernelapi", api_ptr_id=call, stream="0x1", groupSegmentSize=512,
            privateSegmentSize=0, kernelName_id=self.text(name), **axes,
        )  # fmt: skip

    def monitor(self, device: int, start: int, end: int, value: str, what: str = "sclk") -> None:
        """Add a monitored value."""
        self.add(
            "rocpd_monitor", deviceType="gpu", deviceId=device, monitorType=what,
            start=START + start, end=START + end, value=value,
        )  # fmt: skip

    def close(self) -> None:
        """Write it."""
        self.base.commit()
        self.base.close()


def small(path: Path, schema: int = 2) -> Path:
    """A database with a range, an operator in it, a kernel, a copy and a monitored clock."""
    base = Base(path, schema)
    base.call("UserMarker", 0, 500, "step 1")
    base.call("UserMarker", 10, 200, "aten::mm, seq = 3, op_id = 12, sizes = [[2, 2]]")
    base.call("UserMarker", 20, 20, "here")
    one = base.call("hipLaunchKernel", 30, 50)
    base.shape(one, "gemm")
    kernel = base.operation("KernelExecution", 100, 150, "gemm", one)
    two = base.call("hipMemcpyAsync", 210, 230)
    base.add("rocpd_copyapi", api_ptr_id=two, stream="0x1", size=4096, kind=2)
    copy = base.operation("CopyDeviceToHost", 240, 260, "", two)
    base.operation("FillBuffer", 300, 310)
    base.add("rocpd_op_inputSignals", from_op_id=kernel, to_op_id=copy)
    base.monitor(0, 5, 100, "1700")
    base.monitor(0, 100, 300, "800")
    if schema > 2:
        for value in (1.5, 2.5):
            base.add("rocpd_counter", value=value, op_id=kernel, name_id=base.text("SQ_WAVES"))
    base.close()
    return path
