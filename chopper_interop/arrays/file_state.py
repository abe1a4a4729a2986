"""State of the allocator of arrays in files, as its machine code and what installs it have it: words of 64 bits."""

from __future__ import annotations

MOST_FILES = 1 << 13
"""Arrays in files at a time; others stay in memory. Chosen: an eighth of the mappings that a process may have."""
LONGEST_NAME = 1 << 12
"""Bytes of a name of a file, with its end (``PATH_MAX`` of Linux)."""

# The state is words of 64 bits. A mutex of zeros is unlocked, and takes at most 64 bytes.
#
#     0 ... 7   8 ... 16                17 ...              17 + MOST_FILES ...
#     mutex     as they are named here  addresses of files  their sizes, negative of those that no array uses
(
    IS_ON,
    LEAST,  # bytes of an array for which a file is made
    COUNT,  # of files
    SPARE,  # bytes of those that no array uses
    REFUSED,  # bytes of the array for which there was no room, 0 if there was always
    NAME,  # address of the name of the next file
    PATTERN,  # address of the pattern of names
    ITSELF,
    PROCESS,  # which made the files
    ADDRESS,
) = range(8, 18)
SIZE = ADDRESS + MOST_FILES
WORDS = SIZE + MOST_FILES
