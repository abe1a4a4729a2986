"""rocprof v1, rocprofv2 and rocprof-compute."""

import sqlite3
import tempfile
from pathlib import Path

from chopper_interop.errors import AmbiguousRunError, ReadError, UnknownFormatError
from seeds import Odd, Refused, Seed, reads

BOOT = 3_599_977_333_000_000


def lines(text: str) -> frozenset[bytes]:
    return frozenset(line.encode() for line in text.splitlines() if line[:1].isdigit())


def v1_table(count: int = 6, first: int = BOOT, step: int = 1000) -> str:
    """A table of kernels that are dispatched each microsecond and start each `step` from `first`."""
    names = ["fill.kd", "gemm(int, float) [clone .kd]"] * count
    return (
        '"Index","KernelName","gpu-id","queue-id","queue-index","pid","tid","grd","wgr","lds","scr",'
        '"arch_vgpr","accum_vgpr","sgpr","wave_size","sig","obj","DispatchNs","BeginNs","EndNs",'
        '"CompleteNs","DurationNs"\n'
    ) + "".join(
        f'{i},"{name}",8,0,{i},77,78,1024,64,0,0,16,0,32,64,"0x0","0x7f8e",{BOOT + 1000 * i - 50},'
        f"{first + step * i},{first + step * i + 700},{BOOT + 1000 * i + 750},700\n"
        for i, name in enumerate(names[:count])
    )


V1 = v1_table()
V1_COUNTERS = (
    "Index,KernelName,gpu-id,queue-id,queue-index,pid,tid,grd,wgr,lds,scr,arch_vgpr,accum_vgpr,"
    "sgpr,wave_size,sig,obj,SQ_WAVES,TCC_MISS[0],FETCH_SIZE\n"
) + "".join(
    f'{i},"{name}",8,0,{i},91,91,1024,64,0,0,16,0,32,64,0x0,0x7f4c,{16 + i}.0000000000,'
    f"{i}.0000000000,6.8125000000\n"
    for i, name in enumerate(["fill", "gemm(int, float)"] * 3)
)
V1_TIMED_COUNTERS = V1_COUNTERS.replace(
    "FETCH_SIZE\n", "FETCH_SIZE,DispatchNs,BeginNs,EndNs,CompleteNs\n"
).replace("6.8125000000\n", f"6.8125000000,{BOOT},{BOOT + 5},{BOOT + 9},{BOOT + 9}\n")
V1_JSON = (
    '{ "traceEvents":[{}\n'
    ',{"args":{"name":"CPU HIP API"},"ph":"M","pid":2,"name":"process_name","sort_index":0}\n'
    ',{"args":{"name":"COPY"},"ph":"M","pid":1,"name":"process_name","sort_index":1}\n'
    ',{"ph":"X","name":"hipLaunchKernel","pid":2,"tid":78,"ts":"100","dur":"10",\n'
    f'  "args":{{\n    "BeginNs":"{BOOT + 100_000}",\n    "EndNs":"{BOOT + 110_000}",\n'
    '    "pid":"77",\n    "tid":"78",\n    "Name":"hipLaunchKernel",\n    "args":"( dim(1))",\n'
    '    "Data":"",\n    "DurationNs":"10000"\n  }\n}\n'
    ',{"ph":"X","name":"k(int)","pid":6,"tid":1,"ts":"120","dur":"30",\n'
    f'  "args":{{\n    "BeginNs":"{BOOT + 120_001}",\n    "EndNs":"{BOOT + 150_002}",\n'
    '    "dev-id":"0",\n    "queue-id":"0",\n    "Name":"k(int)",\n    "pid":"77",\n'
    '    "tid":"78",\n    "stream-id":"1",\n    "Data":"",\n    "DurationNs":"30001"\n  }\n}\n'
    ',{"ts":105,"ph":"s","cat":"DataFlow","id":0,"pid":2,"tid":78,"name":"dep"}\n'
    ',{"ts":120,"ph":"t","cat":"DataFlow","id":0,"pid":6,"tid":1,"name":"dep"}\n'
    '],\n"otherData": {\n    "CMD": "rocminfo"\n  }\n}'
)
V2 = (
    "Dispatch_ID,GPU_ID,Queue_ID,PID,TID,Grid_Size,Workgroup_Size,LDS_Per_Workgroup,"
    "Scratch_Per_Workitem,Arch_VGPR,Accum_VGPR,SGPR,Wave_Size,Kernel_Name,Start_Timestamp,"
    "End_Timestamp,Correlation_ID,XCC_Index,SQ_WAVES,GRBM_COUNT\n\n"
) + "".join(
    f'{d},2,1,77,78,1024,64,0,0,8,0,16,64,"k(int, int) (.kd)",{BOOT + d * 100},'
    f"{BOOT + d * 100 + 50},{d * d * d},{x},{10 * d + x}.000000,1.500000\n"
    for d in (1, 2, 3)
    for x in (0, 1)
)
V2_HIP = (
    "Domain,Function,Start_Timestamp,End_Timestamp,Correlation_ID\n\n"
    f'HIP_API_DOMAIN,"hipLaunchKernel","k(int, int)",{BOOT + 10},{BOOT + 20},1\n'
    f'HIP_API_DOMAIN,"hipMemcpy",{BOOT + 30},{BOOT + 45},2\n'
    f'HIP_API_DOMAIN,"hipFree",{BOOT + 50},{BOOT + 55},3\n'
)
V2_OPS = (
    "Domain,Operation,Kernel_Name,Start_Timestamp,Stop_Timestamp,Correlation_ID\n\n"
    f'HIP_OPS_DOMAIN,"KernelExecution","k(int, int)",{BOOT + 100},{BOOT + 150},1\n'
    f'HIP_OPS_DOMAIN,"CopyHostToDevice",,{BOOT + 35},{BOOT + 40},2\n'
)
V2_ROCTX = (
    f'Domain,ROCTX_ID,Message,Timestamp\n\nROCTX_DOMAIN,0,"step, "one"",{BOOT}\n'
    f"ROCTX_DOMAIN,0,,{BOOT + 500}\n"
)
COMPUTE = (
    "Dispatch_ID,Kernel_Name,GPU_ID,Grid_Size,Workgroup_Size,LDS_Per_Workgroup,"
    "Scratch_Per_Workitem,Arch_VGPR,Accum_VGPR,SGPR,wave_size,obj,SQ_WAVES,TCC_HIT[0],TCC_HIT[1],"
    "wave_size_1,obj_1,SQ_IFETCH_LEVEL,SQ_ACCUM_PREV_HIRES,SQ_WAVES_1,SQ_LEVEL_WAVES,"
    "SQ_ACCUM_PREV_HIRES_1,Start_Timestamp,End_Timestamp\n"
) + "".join(
    f'{i},"vecCopy(double*, int) [clone .kd]",2,1048576,256,0,0,8,0,16,64,0x7f71,16384,{i},10,64,'
    f"0x7985,13592,1540604,16384,7,44799316,{BOOT + 1000 * i},{BOOT + 1000 * i + 300}\n"
    for i in range(4)
)
PASSES = (
    "GPU_ID,Dispatch_ID,Grid_Size,Workgroup_Size,LDS_Per_Workgroup,Scratch_Per_Workitem,Arch_VGPR,"
    "Accum_VGPR,SGPR,Kernel_Name,Start_Timestamp,End_Timestamp,Kernel_ID,Counter_Name,Counter_Value\n"
) + "".join(
    f'2,{d},1048576,256,0,0,4,4,16,"vecCopy(double*, int)",{BOOT + begin + 1000 * d},'
    f"{BOOT + begin + 1000 * d + 300 + begin},12,{name},{value + d}\n"
    for begin, counters in (
        (0, [("SQ_WAVES", 16384.0), ("TCC_HIT[0]", 1.0), ("TCC_HIT[1]", 10.0)]),
        (7, [("GRBM_GUI_ACTIVE", 8000.0), ("SQ_WAVES", 16400.0)]),
    )
    for d in (1, 2)
    for name, value in counters
)
TIMES = (
    "Dispatch_ID,Kernel_Name,GPU_ID,queue-id,queue-index,pid,tid,Grid_Size,Workgroup_Size,"
    "LDS_Per_Workgroup,Scratch_Per_Workitem,Arch_VGPR,Accum_VGPR,SGPR,wave_size,sig,obj,"
    "DispatchNs,Start_Timestamp,End_Timestamp,CompleteNs\n"
) + "".join(
    f'{i},"vecCopy(double*, int) [clone .kd]",2,0,{i},91,91,1048576,256,0,0,8,0,16,64,0x0,0x7f71,'
    f"{BOOT},{BOOT + 1000 * i},{BOOT + 1000 * i + 300},{BOOT + 9000}\n"
    for i in range(4)
)
HIP_TEXT = (
    f"{BOOT + 100}:{BOOT + 110} 77:78 hipLaunchKernel( function_address(0x1)) kernel=k(int) :5\n"
    f"{BOOT + 120}:{BOOT + 130} 77:78 hipMemcpy(dst=0x1, src=0x2, sizeBytes=128, kind=1) :6\n"
)
OPS_TEXT = (
    f"{BOOT + 115}:{BOOT + 140} 0:0 hcCommandKernel:5:77\n"
    f"{BOOT + 122}:{BOOT + 128} 0:0 CopyHostToDevice:6:77\n"
    f"{BOOT + 150}:{BOOT + 151} 0:0 hcCommandMarker:9:77\n"
)
ROCTX_TEXT = (
    f'{BOOT + 90} 77:78 1:0:"outer "quoted""\n{BOOT + 95} 77:78 1:0:"inner"\n'
    f'{BOOT + 160} 77:78 2:0:""\n{BOOT + 170} 77:78 2:0:""\n{BOOT + 172} 77:78 0:0:"mark"\n'
)


def database(*tables: tuple[str, str, list[tuple[object, ...]]]) -> bytes:
    """A SQLite file of tables: name, columns, rows."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.db"
        connection = sqlite3.connect(path)
        for name, columns, rows in tables:
            connection.execute(f"CREATE TABLE {name} ({columns})")
            marks = ",".join("?" * len(columns.split(",")))
            connection.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)  # noqa: S608
        connection.commit()
        connection.close()
        return path.read_bytes()


SPAN = '"BeginNs" INTEGER, "EndNs" INTEGER, '
TAIL = '"Data" TEXT, "__section" INTEGER, "__lane" INTEGER, "DurationNs" INTEGER'
HIP_TABLE = (
    "HIP",
    f'{SPAN}"pid" INTEGER, "tid" INTEGER, "Name" TEXT, "args" TEXT, "Index" INTEGER, {TAIL}',
    [
        (BOOT + 100, BOOT + 110, 77, 78, "hipLaunchKernel", "( dim(1))", 5, "", 2, 78, 10),
        (BOOT + 120, BOOT + 130, 77, 78, "hipMemcpy", "( sizeBytes(64))", 6, "", 2, 78, 10),
    ],
)
OPERATION = (
    f'{SPAN}"dev-id" INTEGER, "queue-id" INTEGER, "Name" TEXT, "pid" INTEGER, "tid" INTEGER, '
    f'"roctx-range" TEXT, "stream-id" INTEGER, "Index" INTEGER, {TAIL}'
)
OPS_TABLE = (
    "OPS",
    OPERATION,
    [
        (BOOT + 115, BOOT + 140, 2, 0, "k(int)", 77, 78, "k(int)", 1, 5, "", 8, 1, 25),
        (BOOT + 141, BOOT + 142, 2, 0, '"<barrier packet>"', 77, 78, "", 1, 9, "", 520, 1, 1),
    ],
)
COPY_TABLE = (
    "COPY",
    OPERATION,
    [(BOOT + 122, BOOT + 128, 2, 0, "CopyHostToDevice", 77, 78, "", 0, 6, "", 1, 0, 6)],
)
KERN_TABLE = (
    "KERN",
    (
        '"Index" INTEGER, "KernelName" TEXT, "gpu-id" INTEGER, "queue-id" INTEGER, "pid" INTEGER, '
        '"tid" INTEGER, "grd" INTEGER, "wgr" INTEGER, "sig" INTEGER, "obj" INTEGER, "SQ_WAVES" INTEGER,'
        ' "DispatchNs" INTEGER, "BeginNs" INTEGER, "EndNs" INTEGER, "CompleteNs" INTEGER, '
        '"DurationNs" INTEGER'
    ),
    [(0, '"k(int) [clone .kd]"', 2, 0, 77, 78, 64, 64, "0x0", "0x7f", 16.0,
      BOOT, BOOT + 115, BOOT + 140, BOOT + 150, 25)],
)  # fmt: skip
DATABASE = database(HIP_TABLE, OPS_TABLE, COPY_TABLE)

SEEDS = (
    Seed("rocprof-v1", "results.csv", V1.encode(), lines(V1)),
    Seed("rocprof-v1", "pmc.csv", V1_TIMED_COUNTERS.encode(), lines(V1_TIMED_COUNTERS)),
    Seed("rocprof-v1", "results.json", V1_JSON.encode()),
    Seed("rocprof-v1", "results.db", DATABASE),
    Seed("rocprof-v1-text", "hip_api_trace.txt", HIP_TEXT.encode(), lines(HIP_TEXT)),
    Seed("rocprof-v1-text", "hcc_ops_trace.txt", OPS_TEXT.encode(), lines(OPS_TEXT)),
    Seed("rocprof-v1-text", "roctx_trace.txt", ROCTX_TEXT.encode()),
    Seed("rocprofv2", "results_77.csv", V2.encode(), frozenset()),
    Seed("rocprofv2", "hip_api_trace_77.csv", V2_HIP.encode()),
    Seed("rocprofv2", "hcc_ops_trace_77.csv", V2_OPS.encode()),
    Seed("rocprofv2", "roctx_trace_77.csv", V2_ROCTX.encode()),
    Seed("rocprof-compute", "pmc_perf.csv", COMPUTE.encode(), lines(COMPUTE)),
    Seed("rocprof-compute", "pmc_perf.csv", PASSES.encode(), lines(PASSES)),
    Seed("rocprof-compute", "timestamps.csv", TIMES.encode(), lines(TIMES)),
)


def cut(text: str, count: int) -> bytes:
    return text.encode()[:-count]


def header(text: str) -> str:
    return text.split("\n", 1)[0] + "\n"


def edited(text: str, row: int, old: str, new: str) -> bytes:
    result = text.splitlines(keepends=True)
    assert old in result[row]
    result[row] = result[row].replace(old, new, 1)
    return "".join(result).encode()


EMPTY_JSON = b',{"args":{"name":"COPY"},"ph":"M","pid":1,"name":"process_name","sort_index":0}\n'
STATS = '"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n'
ODD = (
    Odd("v1 as it should be", {"results.csv": V1.encode()}, reads(6)),
    Odd("v1 CRLF", {"r.csv": V1.replace("\n", "\r\n").encode()}, reads(6)),
    Odd("v1 UTF-16", {"r.csv": V1.encode("utf-16")}, reads(6)),
    Odd("v1 BOM", {"r.csv": b"\xef\xbb\xbf" + V1.encode()}, reads(6)),
    Odd("v1 Latin-1", {"r.csv": V1.replace("fill", "f\xfcll").encode("latin-1")},
        reads(6, text_not_utf8=1)),
    Odd("v1 cut short", {"r.csv": cut(V1, 60)}, reads(5, row_cut_short=1)),
    Odd("v1 cut within the last number", {"r.csv": cut(V1, 2)}, reads(6, duration_contradicts=1)),
    Odd("v1 header lost", {"r.csv": V1[len(header(V1)) :].encode()},
        Refused(UnknownFormatError, "no format")),
    Odd("v1 header twice", {"r.csv": (header(V1) + V1).encode()}, reads(6)),
    Odd("v1 a table of rocprofv2 behind it", {"r.csv": (V1 + V2_ROCTX).encode()},
        reads(6, table_of_other_tool=2)),
    Odd("compute a table of rocprofv2 behind it", {"pmc_perf.csv": (COMPUTE + V2_ROCTX).encode()},
        reads(4, table_of_other_tool=2)),
    Odd("v1 two files in one", {"r.csv": (V1 + V1.replace(",77,78,", ",79,79,")).encode()},
        reads(12)),
    Odd("v1 header alone", {"r.csv": header(V1).encode()}, Refused(ReadError, "no rows")),
    Odd("v1 a word for a time", {"r.csv": edited(V1, 2, str(BOOT + 1000) + ",", "soon,")},
        reads(5, number_unreadable=1, event_without_time=1)),
    Odd("v1 a time beyond 64 bits",
        {"r.csv": edited(V1, 2, str(BOOT + 1000) + ",", "99999999999999999999,")},
        reads(5, number_unreadable=1, event_without_time=1)),
    Odd("v1 a kernel that starts before it was dispatched",
        {"r.csv": edited(V1, 2, f",{BOOT + 950},", f",{BOOT + 1001},")},
        reads(6, kernel_before_dispatch=1)),
    Odd("v1 a kernel that starts after it was seen to complete",
        {"r.csv": edited(V1, 2, f",{BOOT + 1750},", f",{BOOT + 999},")},
        reads(6, kernel_after_completion=1)),
    Odd("v1 a GPU's clock that is ahead",
        {"r.csv": v1_table(first=BOOT + 10**10).encode()}, reads(6, kernel_after_completion=6)),
    Odd("v1 a GPU's clock that is behind",
        {"r.csv": v1_table(first=BOOT - 10**10).encode()}, reads(6, kernel_before_dispatch=6)),
    Odd("v1 a GPU's clock that is ahead and faster",
        {"r.csv": v1_table(400, BOOT + 10**10, 1001).encode()},
        reads(400, kernel_after_completion=400)),
    Odd("v1 a GPU's clock that is ahead, and a completion that is not known",
        {"r.csv": edited(v1_table(first=BOOT + 10**10), 2, f",{BOOT + 1750},", ",0,")},
        reads(6, kernel_after_completion=5)),
    Odd("v1 times of another run, as Omniperf writes them",
        {"r.csv": v1_table(first=BOOT + 10**10, step=1100).encode()},
        reads(6, times_of_another_run=6)),
    Odd("v1 a kernel alone with times of another run",
        {"r.csv": v1_table(1, BOOT + 10**10).encode()}, reads(1, times_of_another_run=1)),
    Odd("v1 a duration that is not its end less its start",
        {"r.csv": edited(V1, 2, ",700\n", ",701\n")}, reads(6, duration_contradicts=1)),
    Odd("v1 a call whose duration is not its end less its start",
        {"results.json": V1_JSON.replace('"DurationNs":"10000"', '"DurationNs":"9"').encode()},
        reads(2, duration_contradicts=1)),
    Odd("v1 a workgroup larger than its grid", {"r.csv": edited(V1, 2, ",1024,64,", ",64,1024,")},
        reads(6, workgroup_impossible=1)),
    Odd("v2 grid and workgroup swapped",
        {"results_77.csv": V2.replace(",1024,64,", ",256,65536,").encode()},
        reads(3, workgroup_impossible=3)),
    Odd("v1 None for sizes", {"r.csv": edited(V1, 3, ",1024,64,", ",None,None,")}, reads(6)),
    Odd("v1 None for times of one dispatch",
        {"r.csv": edited(V1_TIMED_COUNTERS, 2, f"{BOOT + 5},{BOOT + 9},", "None,None,")},
        reads(5, dispatch_without_time=1)),
    Odd("v1 NUL bytes behind", {"r.csv": V1.encode() + b"\0" * 64}, reads(6)),
    Odd("v1 dispatches of two processes with equal indices",
        {"r.csv": (V1 + "".join(V1.replace(",77,78,", ",80,80,").splitlines(True)[1:])).encode()},
        reads(12)),
    Odd("v1 counters without times, alone", {"pmc.csv": V1_COUNTERS.encode()},
        Refused(ReadError, "without times")),
    Odd("v1 counters without times, and the timed run",
        {"pmc.csv": V1_COUNTERS.encode(), "results.csv": V1.encode()}, reads(6, dispatch_joined=6)),
    Odd(
        "v1 counters of a run with fewer dispatches of one kernel",
        {
            "pmc.csv": "".join(V1_COUNTERS.splitlines(True)[:-1]).encode(),
            "results.csv": V1.encode(),
        },
        Refused(AmbiguousRunError, "two runs"),  # too few to tell
    ),
    Odd("v1 neither times nor counters",
        {"r.csv": b'Index,KernelName,gpu-id,queue-id,queue-index,pid,tid,grd,wgr,sig\n0,"k",2,0,0,1,1,64,64,0x0\n'},
        Refused(ReadError, "without a start")),
    Odd("v1 one name, three files",
        {"results.csv": V1.encode(), "results.json": V1_JSON.encode(), "results.db": DATABASE},
        reads(11, kernels_of_two_tables=1, same_events_in_another_file=1)),
    Odd("v1 one name, a database that is none",
        {"results.csv": V1.encode(), "results.db": DATABASE[:100] + b"\0" * 50}, reads(6)),
    Odd("v1 kernels as dispatches and as operations",
        {"results.db": database(KERN_TABLE, HIP_TABLE, OPS_TABLE, COPY_TABLE)},
        reads(5, kernel_taken_once=1)),
    Odd("v1 JSON as it should be", {"results.json": V1_JSON.encode()}, reads(2)),
    Odd("v1 JSON with a quote in a name",
        {"results.json": V1_JSON.replace("k(int)", 'k<"x">(int)').encode()},
        reads(2, event_repaired=1)),
    Odd("v1 JSON cut short", {"results.json": V1_JSON[: V1_JSON.index('"stream-id"')].encode()},
        reads(1, event_unreadable=1)),
    Odd("v1 JSON without its end", {"results.json": V1_JSON[: V1_JSON.index("],")].encode()},
        reads(2)),
    Odd("v1 JSON without a trace", {"r.json": EMPTY_JSON}, Refused(ReadError, "no events")),
    Odd("v1 JSON with a word for a time",
        {"results.json": V1_JSON.replace(f'"EndNs":"{BOOT + 150_002}"', '"EndNs":"late"').encode()},
        reads(2, number_unreadable=1, event_without_end=1)),
    Odd("v1 database as it should be", {"results.db": DATABASE}, reads(5)),
    Odd("v1 database with words for times",
        {
            "results.db": database(
                (HIP_TABLE[0], HIP_TABLE[1], [*HIP_TABLE[2], ("soon", *HIP_TABLE[2][0][1:])]))},
        reads(2, cells_of_wrong_type=1, event_without_time=1)),
    Odd("v1 database without rows", {"results.db": database((HIP_TABLE[0], HIP_TABLE[1], []))},
        Refused(ReadError, "no events")),
    Odd("v1 statistics", {"r.stats.csv": STATS.encode()},
        Refused(UnknownFormatError, "statistics")),
    Odd("v1 statistics without quotes",
        {"r.csv": (STATS.replace('"', "") + "k(int, float),1,2,2,100.0\n").encode()},
        Refused(UnknownFormatError, "statistics")),
    Odd("v1 text of one process",
        {"77_hip_api_trace.txt": HIP_TEXT.encode(), "77_hcc_ops_trace.txt": OPS_TEXT.encode(),
            "77_roctx_trace.txt": ROCTX_TEXT.encode(),
            "77_begin_ts_file.txt": b"3599977333000000\n"}, reads(8, range_ended=2)),
    Odd("v1 text merged, next to that of processes",
        {"77_hip_api_trace.txt": HIP_TEXT.encode(), "hip_api_trace.txt": HIP_TEXT.encode()},
        reads(2, same_events_in_another_file=1)),
    Odd("v1 text cut short", {"hip_api_trace.txt": cut(HIP_TEXT, 3)}, reads(1, line_cut_short=1)),
    Odd("v1 text with a broken line",
        {"hip_api_trace.txt": (HIP_TEXT + "12:\n" + HIP_TEXT).encode()},
        reads(4, line_unreadable=1)),
    Odd("v1 text with a range that nothing begins",
        {"roctx_trace.txt": (f'{BOOT} 1:1 0:0:"m"\n{BOOT + 1} 1:1 2:0:""\n').encode()},
        reads(1, range_end_alone=1)),
    Odd("v1 text with a range that nothing ends",
        {"roctx_trace.txt": f'{BOOT} 1:1 1:0:"m"\n'.encode()}, reads(1, range_not_ended=1)),
    Odd("v1 handles", {"hsa_handles.txt": b"0x55d0 agent cpu\n0x55e0 agent gpu\n"},
        Refused(UnknownFormatError, "its tables hold them")),
    Odd("v2 XCCs are one dispatch", {"results_77.csv": V2.encode()}, reads(3, counter_row=3)),
    Odd("v2 all tables of a process",
        {"results_77.csv": V2.encode(), "hip_api_trace_77.csv": V2_HIP.encode(),
            "hcc_ops_trace_77.csv": V2_OPS.encode(), "roctx_trace_77.csv": V2_ROCTX.encode()},
        reads(8, counter_row=3, kernel_taken_once=1, range_end_unknown=1)),
    Odd("v2 no rows", {"results_7.csv": (header(V2) + "\n").encode()},
        Refused(ReadError, "no rows")),
    Odd("v2 samples of program counters",
        {"pcs_trace_7.csv": b"Dispatch_ID,Timestamp,GPU_ID,PC_Sample,Shader_Engines\n\n1,2,3,0x4,5\n"},
        Refused(UnknownFormatError, "samples")),
    Odd("compute workload",
        {"w/pmc_perf.csv": COMPUTE.encode(), "w/timestamps.csv": TIMES.encode()},
        reads(4, dispatch_joined=4, instances_summed=2)),
    Odd("compute passes below each other", {"pmc_perf.csv": PASSES.encode()},
        reads(2, counter_row=8, counter_of_several_passes=2, instances_summed=2,
            hardware_unknown=2)),
    Odd("compute passes without numbers of their dispatches",
        {"pmc_perf.csv": PASSES.replace("\n2,1,", "\n2,,").replace("\n2,2,", "\n2,,").encode()},
        reads(4, counter_row=6, instances_summed=2, hardware_unknown=2)),
    Odd("compute a database of metrics",
        {"m.db": database(("compute_dispatch", '"dispatch_id" INTEGER, "start_timestamp" INTEGER', [(0, BOOT)]),
            ("compute_workload", '"workload_id" INTEGER, "name" TEXT', [(1, "w")]))},
        Refused(UnknownFormatError, "pmc_perf.csv")),
    Odd("compute pmc_perf alone", {"pmc_perf.csv": COMPUTE.encode()}, reads(4)),
    Odd("compute times that a spreadsheet rounded",
        {"timestamps.csv": TIMES.replace(f"{BOOT + 1000},{BOOT + 1300}",
                "3.6E+15,3.6E+15").encode()},
        reads(4, time_rounded=2, dispatch_without_duration=1, kernel_after_completion=1)),
    Odd("compute times that were averaged",
        {"timestamps.csv": TIMES.replace(f"{BOOT + 1000},", "41551790928449.54,").encode()},
        reads(4, time_rounded=1, start_far_off=1, duration_implausible=1,
            kernel_before_dispatch=1)),
    Odd("compute statistics",
        {"pmc_kernel_top.csv": b"Kernel_Name,Count,Sum(ns),Mean(ns),Median(ns),Pct\n"},
        Refused(UnknownFormatError, "derived from a workload's")),
    Odd("compute list of dispatches",
        {"pmc_dispatch_info.csv": b"Dispatch_ID,Kernel_Name,GPU_ID\n0,k,4\n"},
        Refused(UnknownFormatError, "derived from a workload's")),
    Odd("compute description of the machine, alone",
        {"sysinfo.csv": b"ip_blocks,hostname,gpu_arch,cu_per_gpu\nSQ,h,gfx942,304\n"},
        Refused(ReadError, "holds no dispatches")),
)  # fmt: skip
