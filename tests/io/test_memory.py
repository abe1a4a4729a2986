"""Files are read at the same time as far as there is room, and each in the end."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from chopper_interop.io import memory


def test_no_more_than_fits_at_the_same_time() -> None:
    room, lock = memory.Room(10), threading.Lock()
    held, most = 0, 0

    def read(size: int) -> int:
        nonlocal held, most
        with room.taken(size):
            with lock:
                held += size
                most = max(most, held)
            time.sleep(0.002)
            with lock:
                held -= size
        return size

    sizes = [4, 3, 5, 2, 0, 6, 1, 10] * 4
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(read, sizes)) == sizes
    assert 5 <= most <= 10


def test_what_is_larger_than_all_room_is_read_alone() -> None:
    room = memory.Room(10)
    with room.taken(100):
        waiting = threading.Thread(target=lambda: room.taken(1).__enter__())
        waiting.start()
        waiting.join(0.02)
        assert waiting.is_alive()
    waiting.join(5)
    assert not waiting.is_alive()


def test_the_machine_has_memory() -> None:
    assert 1 << 26 < memory.physical_bytes() < 1 << 50
