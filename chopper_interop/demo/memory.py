"""The caching allocator of a rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chopper_interop.demo.writer import Writer

# Invented: where a process's device memory begins, and how much its allocator has reserved.
_ADDRESS = 0x7F20_0000_0000
_RESERVED_BYTES = 96 << 30


@dataclass
class Memory:
    """The caching allocator: every allocation and release is an instant in the trace."""

    writer: Writer
    allocated: int = 24 << 30
    _sizes: dict[int, int] = field(default_factory=dict)
    _next: int = _ADDRESS

    def alloc(self, size: int) -> int:
        """Allocate `size` bytes; the address."""
        address, self._next = self._next, self._next + (size + 511) // 512 * 512
        self._sizes[address] = size
        self._note(address, size)
        return address

    def free(self, address: int) -> None:
        """Release what `alloc` gave."""
        self._note(address, -self._sizes.pop(address))

    def free_all(self) -> None:
        """Release everything that is left."""
        for address in list(self._sizes):
            self.free(address)

    def _note(self, address: int, size: int) -> None:
        self.allocated += size
        self.writer.memory(
            size, address=address, allocated=self.allocated, reserved=_RESERVED_BYTES
        )
