r"""Tables of what inputs state of the machine and its user, and what outputs keep of it.

============================  =====================================================  =================
where it comes in             what it is                                             what remains
============================  =====================================================  =================
all sources                   paths of the files, and the job that is called after   path from the
                              one                                                    folder given, with
                                                                                     numbers of host and
                                                                                     user
Kineto, Chakra: header        ``host_name``, metadata of the user, variables         numbers, `TEXT_FACTS`
Kineto: ``python_function``   ``/home/USER/…/train.py(12): step``; ``Call stack``,   name of the file
                              ``kernel_file`` of Triton and others in arguments
Kineto, rocprofv3: names      ``HOST_PID.pt.trace.json``, ``HOST/PID_…``             number of the host
rocprofv3 JSON                ``metadata.node`` (host, machine id), ``command``,     number of the host
                              ``config``
rocpd                         ``info_node``, ``info_process.command`` and            number of the
                              ``.environment``                                       host, the rank
rocprof-compute               ``hostname``, command and paths of ``sysinfo.csv``     number of the host
rpd, rocpd, rocprof           arguments of calls: paths of modules that are loaded   name of the file
PyTorch execution traces      ``kernel_file``, paths in arguments                    name of the file
Perfetto                      command lines of processes, arguments of slices        name of the
                                                                                     program
amd-smi, nvidia-smi           lists of processes, host names in columns              nothing
all texts                     ``USER@HOST``, hosts and users that are known         ``account``, numbers
all texts                     paths in URLs and JSON within a text (``%2Fhome``,     name of the file
                              ``\/home``)
all texts                     URLs                                                   without account and
                                                                                     query
issues, clocks                messages that quote any of these                       file, host number
============================  =====================================================  =================

Hosts are known of ranks and GPUs, users of facts and of the paths of files; words of the field are none.
Host names are needed: ranks and telemetry of one host share its clock, and GPUs are counted by host. So
each host has a number in the outputs, in the order of its ranks (``host0``). Nothing needs the rest. Names
of kernels, operators and ranges are no secrets here; `anonymise` is for those.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from os.path import commonpath
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from chopper_interop.io import inputs
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.sharing import texts
from chopper_interop.sharing.texts import Change, Changes, change_arguments
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.schemas.meta import Meta

LEFT_OUT = (
    "cmdline", "commandline", "command", "cmd", "argv", "environment", "environ", "env",
    "user", "username", "login", "home", "host", "hostname", "nodename", "machineid",
    "cwd", "workdir", "workingdirectory", "executable", "exepath",
    "password", "passwd", "secret", "credentials", "apikey", "accesskey", "accesstoken",
)  # fmt: skip
"""Arguments and facts whose values are left out; in lower case, their words joined."""
TEXT_FACTS = {
    "schema", "et_version", "written_by", "mode", "streams", "would_explain_more", "simulator",
    "host_et_schema", "host_et_matched", "time_base", "gfx", "vram_type", "compute_partition", "memory_partition",
    "driver_version", "cuda_version", "amd_smi_version", "rocm_version", "rocm", "recorder",
    "recorder library", "recorder rate",
}  # fmt: skip
"""Facts that tools state in words. Others with words are what a program or a cluster noted of itself."""
_AMOUNT = re.compile(r"[-\d\s.,:;+()\[\]'TZ]*(?<=\d)(?:\s?[A-Za-z/%]{1,6})?|[0-9A-Fa-f-]{16,}")
"""Numbers, versions, times, with a unit; ids of traces."""
ENVIRONMENT_LEFT_OUT = Fault.info(
    "environment-left-out",
    "Command lines, environment variables, users, hosts and folders in the input were left out or "
    "shortened to the names of files; --keep-environment keeps them.",
)
_HOSTS = ("Rank.host", "Device.host")
_MESSAGES = ("Issue.example", "ClockFit.reason", "DeviceMatch.known_by")
_FILES = ("Source.path", "Issue.source", "ClockFit.of", "DeviceMatch.source")
_HOST = re.compile(r"host\d+")
_USER_FACT = re.compile(r"(?:^|[_ -])(?:user|user_?name|login|owner)$")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9]*_[A-Z0-9_]+")
"""Name of an environment variable."""

_ROOTS = (
    "home", "Users", "root", "tmp", "var", "opt", "usr", "etc", "mnt", "media", "srv", "data", "datasets",
    "scratch", "work", "workspace", "workspaces", "projects", "project", "proj", "shared", "storage",
    "lustre", "gpfs", "nfs", "fsx", "efs", "ceph", "beegfs", "dev/shm", "proc", "private", "Volumes",
    "nix", "conda", "export", "users", "homes", "global", "pscratch", "lus", "cluster", "hpc", "u",
)  # fmt: skip
"""First folders of systems and clusters. A path that begins with none is one only with an ending."""
_END = r"\s;:,'\"<>|()\[\]{}\\"
_WORD = r"[^/\s;:,'\"<>|]{1,64}"
_USER = rf"(?:{_WORD}(?: {_WORD}){{0,3}}(?=/)|{_WORD})"
_PATH = re.compile(
    rf"(?<![\w.~-])(?P<home>~[\w.-]*|\$HOME|\$\{{HOME\}})?/+(?P<user>(?:home|[Uu]sers)/{_USER})?(?P<rest>[^{_END}]*)"
    r"|(?<!\w)(?:[A-Za-z]:|\\)\\(?P<windows>[^;:,'\"<>|()]*)"
)
_URL = re.compile(r"(?<=\w://)(?:[^/?@\s]*@)?(?P<place>[^?\s'\"<>|]*)(?:\?[^\s'\"<>|]*)?")
"""The place that a URL names, between the account that it is opened with and the query, which may be a signature."""
_OF_HOME = re.compile(r"(?<![^/])(?P<homes>(?:home|[Uu]sers)/)(?P<user>[^/]+)(?=/)")
"""Folder of a user within a path, as archives of whole paths have it."""
_OF_ROOT = re.compile(rf"(?:{'|'.join(_ROOTS)})\d*(?:/|$)")
_ACCOUNT = re.compile(
    r"[\w.+-]{1,64}(?:@|%40)(?!plt\b|[A-Z]+_)(?:[A-Za-z]|\d+\.\d+\.\d)[A-Za-z0-9.-]*"
)
"""User and host, as prompts of shells and mail have them; versions of symbols (``f@GLIBC_2.2``) are none. Longer ones are no users, and
would take the square of their length."""
_LAYER = re.compile(r"(?:AscendCL|Model|Node|Communication|Runtime|HCCL|Enqueue|Dequeue)(?:@|%40)")
"""Layer of CANN, or end of torch_npu's queue of tasks, in front of what it calls: ``AscendCL@aclrtMemcpy``, ``Dequeue@aclnnMm``."""
_ENCODED = re.compile(r"(?<!\\)\\+(?:/|u002[fF])|(?:%(?:25)*[0-9A-Fa-f]{2})+")
"""Slashes of JSON within a text, and letters as URLs have them."""
_QUOTED = 80
"""Letters of a line that readers quote: what is cut off there may be half a name. Chosen: as they all do."""
_CUT_WORD = re.compile(r"[^\s,;]*$")
_MIN_LETTERS = 3
"""Of a user whose name is looked for. Chosen: shorter ones are parts of many names."""
_FILE = re.compile(r".*[^/]\.[A-Za-z]\w{0,7}")
_LIBRARY = re.compile(
    r".*(?:site-packages|dist-packages|lib/python[0-9.]+)/"
    r"|.*?/(?=(?:torch|torchvision|torchrec|transformers|deepspeed|megatron|transformer_engine|triton|vllm|sglang)/)"
)
"""Folders around Python's libraries: paths within these are the same everywhere."""


def without_folders(text: str) -> str:
    """Return a text in which absolute paths are the names of their files.

    Paths within Python's libraries keep the library's part.

    Examples
    --------
    >>> without_folders("/home/ann/llm/train.py(12): step")
    'train.py(12): step'
    >>> without_folders("/opt/venv/lib/python3.12/site-packages/torch/optim/adam.py(7): step")
    'torch/optim/adam.py(7): step'
    >>> without_folders("/model/layers.0/attn")  # a name, and no file
    '/model/layers.0/attn'
    """
    if "%" in text or "\\" in text:
        decoded = _ENCODED.sub(_decoded, text)
        without = _without_plain_folders(decoded)
        if without != decoded:
            return without
    return _without_plain_folders(text)


def _without_plain_folders(text: str) -> str:
    if "://" in text:
        text = _URL.sub(r"\g<place>", text)
    return _PATH.sub(_shortened, text) if "/" in text or "\\" in text else text


def _decoded(match: re.Match[str]) -> str:
    code = match[0]
    return "/" if code[0] == "\\" else unquote(re.sub("%(?:25)+", "%", code))


def _shortened(match: re.Match[str]) -> str:
    windows = match["windows"]
    if windows is not None:
        return windows.replace("\\\\", "\\").rstrip("\\").rpartition("\\")[2]
    path = (match["user"] or "") + (match["rest"] or "")
    known = match["home"] or match["user"] or _OF_ROOT.match(path)
    if not known and not ("/" in path and _FILE.match(path)):
        return match[0]
    if match["user"] and not (match["rest"] or "").strip("/"):
        return ""
    library = _LIBRARY.match(f"/{path}")
    return f"/{path}"[library.end() :] if library else path.rstrip("/").rpartition("/")[2]


def leave_out(trace: Trace, given: Iterable[Path], *, of_arguments: bool = True) -> Trace:
    """Return a trace without command lines, environment, users, hosts and folders.

    Parameters
    ----------
    trace
        A job's trace.
    given
        Files and folders that the user gave; paths of sources are kept from there on.
    of_arguments
        False if texts of arguments stay as they are.
    """
    hosts = _host_numbers(trace.meta)
    users = _user_numbers(trace.meta)
    without = _Without(hosts, users)
    trace, in_tables = texts.change_tables(trace, lambda _, text: without(text))
    in_arguments = 0
    if of_arguments:
        changes = Changes(without, without, LEFT_OUT, marks="/\\@%", words=tuple(without.known))
        trace, in_arguments = change_arguments(trace, changes)
    facts = {k: v for k, v in trace.meta.facts.items() if _is_kept(k, v)}
    change = _meta_change(given, hosts, users, without)
    meta = texts.change_meta(replace(trace.meta, facts=facts), change)
    count = in_tables + in_arguments + len(trace.meta.facts) - len(facts)
    count += sum(number != host for host, number in hosts.items())
    issues = IssueLog("job")
    issues.extend(meta.issues)
    issues.add(ENVIRONMENT_LEFT_OUT, count)
    return trace.with_meta(**{**vars(meta), "issues": tuple(issues)})


class _Without:
    """Makes texts without folders, users and hosts; equal accounts are equal afterwards, others are not.

    Parameters
    ----------
    hosts, users
        Their numbers.
    """

    def __init__(self, hosts: dict[str, str], users: dict[str, str]) -> None:
        self.known = {name: n for name, n in (hosts | users).items() if _is_telling(name, n)}
        self._known = _whole_words(self.known)
        self._accounts: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        """Return the text without them."""
        text = without_folders(text)
        if "@" in text or "%40" in text:
            text = _ACCOUNT.sub(self._account, text)
        return self._known.sub(lambda match: self.known[match[0]], text) if self._known else text

    def _account(self, match: re.Match[str]) -> str:
        if _LAYER.match(match[0]) or not any(
            _is_telling(part, "") for part in re.split("@|%40", match[0])
        ):
            return match[0]
        count = len(self._accounts)
        return self._accounts.setdefault(match[0], f"account{count}" if count else "account")


def _is_telling(name: str, number: str) -> bool:
    """True for a name that is no word of the field, such as ``localhost`` or ``train``."""
    if name == number or len(name) < _MIN_LETTERS or name.isdigit():
        return False
    from chopper_interop.schemas.vocabulary import WORDS  # most jobs have no such names

    return name.lower() not in WORDS


def _whole_words(names: Iterable[str]) -> re.Pattern[str] | None:
    quoted = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    return re.compile(rf"(?<![^\W_])(?<![.-])(?:{quoted})(?![^\W_]|-)") if quoted else None


def _is_kept(fact: str, text: str) -> bool:
    if _is_left_out(fact):
        return False
    return (
        re.sub(r"\[\d+\]$|_rank\d+$", "", fact) in TEXT_FACTS or _AMOUNT.fullmatch(text) is not None
    )


def _is_left_out(key: str) -> bool:
    return re.sub("[-_ ]", "", key.lower()) in LEFT_OUT or _VARIABLE.fullmatch(key) is not None


def _host_numbers(meta: Meta) -> dict[str, str]:
    """Number of each host, by its first rank; hosts that have numbers keep them."""
    by_rank = sorted(meta.ranks, key=lambda rank: rank.rank)
    others = sorted(device.host for device in meta.devices)
    hosts = dict.fromkeys(host for host in (*(r.host for r in by_rank), *others) if host)
    if all(_HOST.fullmatch(host) for host in hosts):
        return {host: host for host in hosts}
    return {host: f"host{k}" for k, host in enumerate(hosts)}


def _user_numbers(meta: Meta) -> dict[str, str]:
    """Number of each user whom a fact names, or whose folder is within the path of a source: paths stay as different as they are."""
    stated = [v for k, v in sorted(meta.facts.items()) if _USER_FACT.search(k.lower())]
    matches = (match for source in meta.sources for match in _OF_HOME.finditer(source.path))
    names = dict.fromkeys([*(match["user"] for match in matches), *stated])
    return {name: f"user{k}" for k, name in enumerate(names)}


def _meta_change(
    given: Iterable[Path], hosts: dict[str, str], users: dict[str, str], without: _Without
) -> Change:
    """Make the change of texts in metadata: folders of inputs, names of hosts and users, other folders."""
    given = list(given)
    prefixes = sorted(_prefixes(given), key=lambda p: (len(p), p), reverse=True)
    of_inputs = {inputs.plain_name(p) for path in given for p in (path, *path.absolute().parents)}
    of_host = _whole_words(hosts)
    with_paths = {*_MESSAGES, *_FILES}

    def change(place: str, text: str) -> str:
        if place in _HOSTS:
            return hosts.get(text, text)
        is_cut = place == "Issue.example" and len(text) == _QUOTED
        for prefix in prefixes:
            text = text.replace(prefix, "")
        in_path = place in with_paths
        if of_host is not None and (in_path or (place == "Meta.job" and text in of_inputs)):
            text = of_host.sub(lambda match: hosts[match[0]], text)
        if in_path:
            text = _OF_HOME.sub(
                lambda match: match["homes"] + users.get(match["user"], "user"), text
            )
        of_user = place == "Meta.job" and text not in of_inputs
        new = without_folders(text) if of_user else without(text)
        return _CUT_WORD.sub("", new) if is_cut and new != text else new

    return change


def _prefixes(given: list[Path]) -> set[str]:
    """Folders above what was given; above all of it where the names are not enough."""
    folders = {path: path.parent for path in given}
    if len({path.name for path in given}) < len(set(given)):
        common = Path(commonpath([path.absolute() for path in given]))
        folders = {path: common if path.is_absolute() else path.parent for path in given}
    folders = {p: p if _is_of_user(p) else folder for p, folder in folders.items()}
    return {f"{folder}/" for folder in folders.values()} - {"./", "//"}


def _is_of_user(path: Path) -> bool:
    return path.name != "" and path.absolute().parent.name in ("home", "Users")
