"""State of the allocator of arrays in files, as its machine code and what installs it have it: words of 64 bits."""

from __future__ import annotations

MOST_FILES = 1 << 15
"""Files at a time; further arrays of analyses stay in memory. Chosen: half of the mappings that a process may have."""
THREADS = 64
"""Threads that may make a file at a time, for which there is room besides (chosen)."""
LONGEST_NAME = 1 << 12
"""Bytes of a name of a file, with its end (``PATH_MAX`` of Linux)."""
LONGEST_LINE = 1 << 8
"""Bytes of ``statm``, with room: seven numbers of at most 20 digits."""

# The state is words of 64 bits. A mutex of zeros is unlocked, and takes at most 64 bytes.
#
#     0 ... 7   8 ... 24                25 ...              25 + MOST_FILES + THREADS ...
#     mutex     as they are named here  addresses of files  their sizes, negative of those that no array uses
(
    IS_ON,
    LEAST,  # bytes of an array for which a file is made
    COUNT,  # of files
    SPARE,  # bytes of those that no array uses
    REFUSED,  # bytes of the array for which there was no room, 0 if there was always
    REASON,  # number of the system's error then
    USUAL,  # resident pages that are not of these files, but of programs and of files of others
    MOST_RESIDENT,  # pages that may be resident besides
    LOOK_US,  # microseconds between two looks at what is resident
    STATM,  # open file in which they stand
    LINE,  # address of room for its line
    REST,  # address of what was not yet read of it
    WATCH,  # thread that looks, 0 if there is none
    NAME,  # address of the name of the next file
    PATTERN,  # address of the pattern of names
    ITSELF,
    PROCESS,  # which made the files
    ADDRESS,
) = range(8, 26)
SIZE = ADDRESS + MOST_FILES + THREADS
WORDS = SIZE + MOST_FILES + THREADS
