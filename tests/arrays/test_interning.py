"""Texts are numbered by first occurrence, whatever their hashes."""

import numpy as np
import pytest

from chopper_interop.arrays import interning
from chopper_interop.arrays.compiled import jit


@jit
def enter(buffer, start, stop, table, number):
    """Number of each text."""
    for i in range(len(start)):
        number[i] = interning.intern_text(buffer, start[i], stop[i], table)


def numbered(texts):
    """The number of each text, and the table."""
    stop = np.cumsum([len(text) for text in texts])
    start = np.append(0, stop[:-1])
    table, number = interning.empty_text_table(len(texts)), np.empty(len(texts), np.int64)
    enter(np.frombuffer(b"".join(texts), np.uint8).copy(), start, stop, table, number)
    return number, table


@pytest.mark.parametrize("length", [7, 8, 9, 15, 16, 17, 64, 150, 511])
def test_texts_that_differ_in_one_number_have_hashes_of_their_own(length):
    """Were it between the words that a hash is made of, each would be compared with all before it."""
    for at in range(0, length - 4, 7):
        texts = [b"x" * at + b"%04d" % k + b"y" * (length - at - 4) for k in range(500)]
        number, table = numbered(texts + texts)
        assert number.tolist() == [*range(500)] * 2
        assert len(np.unique(table.hash[:500])) == 500
