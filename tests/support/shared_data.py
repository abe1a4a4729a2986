"""Where real inputs lie, beside the project; a plain clone has none."""

from pathlib import Path

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
