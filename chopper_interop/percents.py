"""Shares as percentages: none that is not all or nothing reads so."""

from __future__ import annotations

_EXACT = 1e-9
"""Distance from nothing or all that is not shown. Chosen: above what sums of doubles are off by."""


def percent(share: float, decimals: int = 1) -> str:
    """Format a share with so many decimals; next to 0 or 100 % by the bound that they can show.

    Examples
    --------
    >>> [percent(share) for share in (-1e-12, 0, 0.0004, 0.125, 1124 / 1128, 0.9999, 1)]
    ['0.0%', '0.0%', '<0.1%', '12.5%', '99.6%', '>99.9%', '100.0%']
    """
    share = 0.0 if abs(share) < _EXACT else share  # its sign would be shown
    text = f"{share:,.{decimals}%}"
    step = 10.0 ** -(decimals + 2)
    for edge in (0, 1):
        if text.removeprefix("-") == f"{edge:.{decimals}%}" and abs(share - edge) > _EXACT:
            return f"{'<' if share > edge else '>'}{edge + (step if share > edge else -step):.{decimals}%}"
    return text
