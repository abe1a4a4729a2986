"""Nodes of PyTorch's host execution traces as columns, in one walk over the text.

Formats by schema: up to 1.0.1 all members stand in the node itself (``rf_id``, ``parent``,
``input_shapes`` …); from 1.0.2 on ``ctrl_deps`` is the parent, ``inputs`` and ``outputs`` are
objects of lists, and everything else stands in ``attrs``, a list of name, type and value.
The walk accepts either anywhere. A node that is not proper JSON is counted and left out, and the
walk goes on at the next text that looks like the start of one.
"""

from __future__ import annotations

import numpy as np

from chopper_interop.arrays import Array, Bytes, interning
from chopper_interop.arrays.compiled import jit, jit_in_place
from chopper_interop.arrays.interning import TextTable, intern_text
from chopper_interop.io.json_text import (
    CLOSE,
    CLOSE_LIST,
    COLON,
    COMMA,
    MINUS,
    OPEN,
    OPEN_LIST,
    QUOTE,
    parse_decimal,
    skip_blank,
    skip_string,
    skip_value,
    unclosed_brackets,
)

NUMBERS = ("id", "parent", "ctrl_deps", "rf_id", "fw_parent", "seq_id", "scope", "tid", "fw_tid")
LISTS = ("inputs", "outputs", "input_types", "output_types")
"""Members that are numbers, and those of which the offset is stored."""
_ID, _PARENT, _CTRL_DEPS = range(3)
_SEQ_ID = NUMBERS.index("seq_id")
_INPUTS, _OUTPUTS, _INPUT_TYPES, _OUTPUT_TYPES = len(NUMBERS) + np.arange(4)
_NAME, _SCHEMA, _AT, _END, _HAS = _OUTPUT_TYPES + 1 + np.arange(5)
_COLUMNS = (*NUMBERS, *LISTS, "name", "op_schema", "at", "end", "has")
_ATTRS, _VALUE, _VALUES, _TYPES, _START = _SCHEMA + 1 + np.arange(5)
_KEYS = (*NUMBERS, *LISTS, "name", "op_schema", "attrs", "value", "values", "types", "schema")
"""Keys of members; those that `NODE` has a column for come first, in the order of its columns."""

NODE = np.dtype([(name, np.int64) for name in _COLUMNS])
"""One node. `has` has a bit for each of `NUMBERS` that is a number; offsets of `LISTS` are -1 where
absent; `name` and `op_schema` are numbers of texts, -1 if absent. While a node is read it is an array
of these columns, so that the number of a key is that of its column."""

DONE, MORE, CUT, NEXT_DOCUMENT = 0, 1, 2, 3
"""Status of a walk: at the list's end, with more to come, where the text broke off, or where
another document begins."""

_NEITHER, _A_NODE, _A_DOCUMENT = 0, 1, 2
"""Guesses at what opens at a brace."""

_BATCH = 1 << 13
"""Nodes that are read at a time; chosen: a megabyte of rows, so that little is left unused."""
_BOUNDS = np.cumsum([0, *(len(key) for key in _KEYS)])
_TEXT = np.frombuffer("".join(_KEYS).encode(), np.uint8)
_NUMBER_COUNT = len(NUMBERS)
_MAX_OFFSETS = 64
"""Offsets of malformed pieces that are stored; the first becomes the example, all are counted."""


class Walk:
    """A walk over one file, document by document."""

    def __init__(self, buffer: Bytes) -> None:
        self.buffer = buffer
        self.texts = interning.empty_text_table(8 * _BATCH)
        self.malformed = np.zeros(1, np.int64)
        self.malformed_at = np.full(_MAX_OFFSETS, -1, np.int64)
        # braces that are known to open nothing; costs no memory until it is written to
        self._unusable = np.zeros(len(buffer), np.bool_)

    def nodes(self, start: int) -> tuple[Array, int, int]:
        """Return the nodes of the list that opens at `start`, where it ended, and how."""
        batches = []
        at, status = start + 1, MORE
        while status == MORE:
            if self.texts.used[0] + 2 * _BATCH > self.texts.capacity:
                self.texts = interning.enlarged_text_table(self.texts)
            batch = np.zeros((_BATCH, len(_COLUMNS)), np.int64)
            at, n, status = _walk(
                self.buffer,
                at,
                batch,
                self.texts,
                self.malformed_at,
                self.malformed,
                self._unusable,
            )
            batches.append(batch[:n].view(NODE)[:, 0])
        return np.concatenate(batches), at, status


@jit_in_place
def key_of(buffer: Bytes, at: int, end: int) -> int:
    """Return the index in `_KEYS` of the key at ``buffer[at:end]``; -1 for another."""
    for k in range(len(_BOUNDS) - 1):
        first = _BOUNDS[k]
        if _BOUNDS[k + 1] - first == end - at:
            same = True
            for j in range(end - at):
                if _TEXT[first + j] != buffer[at + j]:
                    same = False
                    break
            if same:
                return k
    return -1


@jit_in_place
def whole_number(buffer: Bytes, i: int, n: int) -> tuple[int, bool]:
    """Return the whole number at `i`, unsigned ones modulo 2**64; False if there is none."""
    if i < n and buffer[i] == QUOTE:
        i += 1
    value, end, ok = parse_decimal(buffer, i, n, 0)
    tail = end < n and buffer[end] in (46, 69, 101)
    return value, ok and end > i and not tail


@jit_in_place
def member(buffer: Bytes, i: int, n: int) -> tuple[int, int, int]:
    """Return the offsets of the object's member whose key opens at `i`.

    Returns
    -------
    key_end, value, end
        Where key and value end, and the value begins; `end` is negative where the member is not
        proper JSON, as in `json_text`.
    """
    if i >= n or buffer[i] != QUOTE:
        return i, i, -1 if i >= n else -2
    key_end = skip_string(buffer, i, n)
    if key_end < 0:
        return i, i, key_end
    colon = skip_blank(buffer, key_end, n)
    if colon >= n or buffer[colon] != COLON:
        return i, colon, -1 if colon >= n else -2
    value = skip_blank(buffer, colon + 1, n)
    if value >= n:
        return i, value, -1
    return key_end - 1, value, skip_value(buffer, value, n)


@jit_in_place
def next_member(buffer: Bytes, i: int, n: int) -> int:
    """Return where the next member's key opens; n at the object's end, negative if it is broken."""
    i = skip_blank(buffer, i, n)
    if i >= n:
        return -1
    if buffer[i] == CLOSE:
        return n
    if buffer[i] != COMMA:
        return -2
    return skip_blank(buffer, i + 1, n)


@jit_in_place
def _next_item(buffer: Bytes, i: int, n: int) -> int:
    """Return where the next value of a list opens, or its end stands: behind a comma, if there is one."""
    i = skip_blank(buffer, i, n)
    return skip_blank(buffer, i + 1, n) if i < n and buffer[i] == COMMA else i


@jit_in_place
def _store(buffer: Bytes, key: int, value: int, end: int, node: Array, texts: TextTable) -> None:
    """Store a member with a known key in the node."""
    if key < _NUMBER_COUNT:
        number, ok = whole_number(buffer, value, end)
        if ok:
            column = _PARENT if key == _CTRL_DEPS else key
            node[column] = number
            node[_HAS] |= 1 << column
    elif key in (_NAME, _SCHEMA):
        if buffer[value] == QUOTE:
            node[key] = intern_text(buffer, value + 1, end - 1, texts)
    elif buffer[value] == OPEN_LIST:
        node[key] = value


@jit_in_place
def _store_lists(buffer: Bytes, i: int, n: int, node: Array, lists: int, types: int) -> None:
    """Store the offsets of the lists of an ``inputs`` or ``outputs`` object in these columns of the node."""
    i = skip_blank(buffer, i + 1, n)
    while 0 <= i < n and buffer[i] == QUOTE:
        key_end, value, end = member(buffer, i, n)
        if end < 0:
            return
        key = key_of(buffer, i + 1, key_end)
        if key == _VALUES:
            node[lists] = value
        elif key == _TYPES:
            node[types] = value
        i = next_member(buffer, end, n)


@jit_in_place
def _guess_start(buffer: Bytes, i: int, n: int) -> int:
    """Guess what opens at the brace at `i`: `_A_NODE`, `_A_DOCUMENT` or `_NEITHER`.

    A node begins with its id, or with its name and then its id; attributes have names as well.
    """
    i = skip_blank(buffer, i + 1, n)
    key_end, value, end = member(buffer, i, n)
    if value >= n or key_end <= i:
        return _NEITHER
    key = key_of(buffer, i + 1, key_end)
    if key == _ID:
        return _A_NODE
    if key == _START:
        return _A_DOCUMENT
    if key != _NAME:
        return _NEITHER
    i = next_member(buffer, end, n) if end > 0 else n
    if i < 0 or i >= n:
        return _NEITHER
    key_end, value, end = member(buffer, i, n)
    return _A_NODE if key_end > i and key_of(buffer, i + 1, key_end) == _ID else _NEITHER


@jit_in_place
def attribute(buffer: Bytes, i: int, n: int) -> tuple[int, int, int, int]:
    """Return offsets of name and value of the attribute object at `i`; -1 where absent."""
    name, name_end, at, stop = -1, -1, -1, -1
    i = skip_blank(buffer, i + 1, n)
    while 0 <= i < n and buffer[i] == QUOTE:
        key_end, value, end = member(buffer, i, n)
        if end < 0:
            break
        key = key_of(buffer, i + 1, key_end)
        if key == _NAME and buffer[value] == QUOTE:
            name, name_end = value + 1, end - 1
        elif key == _VALUE:
            at, stop = value, end
        i = next_member(buffer, end, n)
    return name, name_end, at, stop


@jit_in_place
def _store_attributes(buffer: Bytes, i: int, n: int, node: Array, texts: TextTable) -> int:
    """Store a list of attributes; return where a node is among them, as text was lost, or -1."""
    i = skip_blank(buffer, i + 1, n)
    while i < n and buffer[i] == OPEN:
        if _guess_start(buffer, i, n) == _A_NODE:
            return i
        name, name_end, at, stop = attribute(buffer, i, n)
        if name >= 0 and at >= 0:
            key = key_of(buffer, name, name_end)
            if 0 <= key < _ATTRS and key not in (0, _NAME):
                _store(buffer, key, at, stop, node, texts)
        i = skip_value(buffer, i, n)
        if i < 0:
            return -1
        i = _next_item(buffer, i, n)
    return -1


@jit_in_place
def _store_node(buffer: Bytes, i: int, n: int, node: Array, texts: TextTable) -> tuple[int, int]:
    """Store the object at `i` as a node; return its end (negative: broken), and where it breaks."""
    node[_INPUTS : _SCHEMA + 1] = -1
    node[_SEQ_ID], node[_AT] = -1, i
    i = skip_blank(buffer, i + 1, n)
    while i < n and buffer[i] != CLOSE:
        key_end, value, end = member(buffer, i, n)
        if end < 0:
            return end, value
        key = key_of(buffer, i + 1, key_end)
        is_object = buffer[value] == OPEN
        if key in (_INPUTS, _OUTPUTS) and is_object:
            _store_lists(buffer, value, end, node, key, key + len(LISTS) // 2)
        elif key == _ATTRS and buffer[value] == OPEN_LIST:
            node_inside = _store_attributes(buffer, value, end, node, texts)
            if node_inside >= 0:
                return -2, node_inside
        elif 0 <= key < _ATTRS:
            _store(buffer, key, value, end, node, texts)
        i = skip_blank(buffer, end, n)
        if i < n and buffer[i] == COMMA:
            i = skip_blank(buffer, i + 1, n)
        elif i < n and buffer[i] != CLOSE:
            return -2, i
    if i >= n:
        return -1, n
    node[_END] = i + 1
    return i + 1, i


@jit_in_place
def _find_start(buffer: Bytes, i: int, n: int, unusable: Array) -> int:
    """Return the offset of the next brace at which a node or document seems to open; n if none."""
    while i < n:
        if buffer[i] == OPEN and not unusable[i] and _guess_start(buffer, i, n) != _NEITHER:
            return i
        i += 1
    return n


@jit
def _resume(buffer: Bytes, i: int, broken_at: int, n: int, unusable: Array) -> int:
    """Return where to go on behind what is malformed: the text at `i`, which breaks at `broken_at`.

    Brackets that open there and do not close are noted, so that they are not searched again.
    """
    at = min(max(broken_at, i), n)
    if at < n and buffer[at] in (OPEN, OPEN_LIST):
        broken, opened, depth = unclosed_brackets(buffer, at, n)
        if broken < 0:
            unusable[opened[:depth]] = True
    return _find_start(buffer, max(at, i + 1), n, unusable)


@jit
def _walk(
    buffer: Bytes,
    i: int,
    batch: Array,
    texts: TextTable,
    malformed_at: Array,
    malformed: Array,
    unusable: Array,
) -> tuple[int, int, int]:
    """Fill a batch with nodes; return where the walk stopped, how many there are, and how it ended.

    A loop over bytes: where a node begins depends on where the one before ended, and files have
    hundreds of megabytes.
    """
    n, count = len(buffer), 0
    while True:
        i = skip_blank(buffer, i, n)
        if i >= n:
            return n, count, CUT
        if buffer[i] == CLOSE_LIST:
            return i + 1, count, DONE
        if buffer[i] == COMMA:
            i += 1
            continue
        if count == len(batch):
            return i, count, MORE
        is_object = buffer[i] == OPEN
        if is_object and _guess_start(buffer, i, n) == _A_DOCUMENT:
            return i, count, NEXT_DOCUMENT
        if is_object:
            end, at = _store_node(buffer, i, n, batch[count], texts)
        else:
            end, at = skip_value(buffer, i, n), i
        if is_object and end > 0:
            count += 1
        else:
            batch[count] = 0
            if malformed[0] < len(malformed_at):
                malformed_at[malformed[0]] = i
            malformed[0] += 1
        i = end if end >= 0 else _resume(buffer, i, at, n, unusable)


TENSOR = np.dtype(
    [(k, np.int64) for k in ("node", "arg", "tensor", "storage", "start", "stop")]
    + [("out", np.bool_)],
    align=True,
)
"""A tensor among a node's inputs or outputs: index of the argument that it is (part of), the
storage that it lies in, and its bytes there."""
_TENSOR_PARTS = 5
_MAX_BYTES = 1 << 61
"""Beyond this an end of a tensor is nonsense, and might overflow int64."""
_TENSOR_WORD = np.frombuffer(b"Tensor(", np.uint8)


def tensors(buffer: Bytes, nodes: Array) -> Array:
    """Find all tensors among the values of nodes (rows of `NODE`), each node's inputs first."""
    room = 4 * len(nodes) + 64  # a guess; if there are more, they are read again
    while True:
        table = np.empty(room, TENSOR)
        count = _find_tensors(buffer, nodes, table)
        if count <= room:
            return table[:count]
        room = count


# Goes on counting beyond the table, which is then made as large as that, and filled again.
@jit
def _find_tensors(buffer: Bytes, nodes: Array, table: Array) -> int:
    count = 0
    for k in range(len(nodes)):
        node = nodes[k]
        count = _tensors_of_list(
            buffer, node.inputs, node.input_types, node.end, k, False, table, count
        )
        count = _tensors_of_list(
            buffer, node.outputs, node.output_types, node.end, k, True, table, count
        )
    return count


@jit
def _tensors_of_list(
    buffer: Bytes,
    values: int,
    types: int,
    n: int,
    node: int,
    out: bool,  # noqa: FBT001
    table: Array,
    count: int,
) -> int:
    """Find the tensors in one list of values, which the list of their types distinguishes."""
    if values < 0 or types < 0:
        return count
    v, t, arg = skip_blank(buffer, values + 1, n), skip_blank(buffer, types + 1, n), 0
    while v < n and t < n and buffer[v] != CLOSE_LIST and buffer[t] != CLOSE_LIST:
        v_end, t_end = skip_value(buffer, v, n), skip_value(buffer, t, n)
        if v_end < 0 or t_end < 0:
            return count
        i = v if buffer[v] == OPEN_LIST and _has_tensors(buffer, t, t_end) else v_end
        while 0 <= i < v_end:
            if buffer[i] == OPEN_LIST:
                count = _store_tensor(buffer, i, v_end, node, arg, out, table, count)
            i = skip_string(buffer, i, v_end) if buffer[i] == QUOTE else i + 1
        v, t, arg = _next_item(buffer, v_end, n), _next_item(buffer, t_end, n), arg + 1
    return count


@jit_in_place
def _has_tensors(buffer: Bytes, i: int, end: int) -> bool:
    """True if a type's text names tensors: ``Tensor(float)``, ``GenericList[Tensor(…),…]``."""
    for k in range(i, end - len(_TENSOR_WORD)):
        same = True
        for j in range(len(_TENSOR_WORD)):
            if buffer[k + j] != _TENSOR_WORD[j]:
                same = False
                break
        if same:
            return True
    return False


@jit
def _store_tensor(
    buffer: Bytes,
    i: int,
    n: int,
    node: int,
    arg: int,
    out: bool,  # noqa: FBT001
    table: Array,
    count: int,
) -> int:
    """Store a ``[tensor, storage, offset, elements, element size, "device"]``, if it is one."""
    parts = np.zeros(_TENSOR_PARTS, np.int64)
    i = skip_blank(buffer, i + 1, n)
    for k in range(_TENSOR_PARTS):
        if i >= n or not (buffer[i] == MINUS or 48 <= buffer[i] <= 57):
            return count
        value, end, ok = parse_decimal(buffer, i, n, 0)
        i = skip_blank(buffer, end, n)
        if not ok or i >= n or buffer[i] != COMMA:
            return count
        parts[k] = value
        i = skip_blank(buffer, i + 1, n)
    if i >= n or buffer[i] != QUOTE:
        return count
    storage, offset, elements, size = parts[1], parts[2], parts[3], parts[4]
    start, stop = 0, 1
    if storage == 0:
        storage = parts[0]  # without a storage the tensor stands for itself
    else:
        sound = offset >= 0 and elements >= 0 and size >= 0
        if not sound or np.float64(offset + elements) * np.float64(size) > _MAX_BYTES:
            return count
        start, stop = offset * size, (offset + elements) * size
    if storage == 0 or stop <= start:
        return count
    if count < len(table):
        row = table[count]
        row.node, row.arg, row.storage, row.start, row.stop = node, arg, storage, start, stop
        row.tensor, row.out = parts[0], out
    return count + 1
