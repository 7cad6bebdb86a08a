"""Rows of figures as a table: a column for every key but the less important ones, dashes for missing
values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

LEAST = 7


TITLES = {
    "steps": "S",
    "tokens": "N",
    "per_frame": "k",
    "prompt": "L",
    "frames_s": "frames/s",
    "actions_s": "actions/s",
    "tokens_s": "tokens/s",
    "isolated_frames_s": "isolated",
    "plain_frames_s": "plain",
    "bound_frames_s": "bound",
    "over_isolated": "/isolated",
    "over_plain": "/plain",
    "chunks_s": "chunks/s",
    "over_hf": "/HF",
    "over_sequential": "/sequential",
    "age_p50_ms": "age ms",
    "age_p99_ms": "p99",
    "memory_gb": "GB",
    "energy_mj": "mJ",
    "tokens_equal": "equal",
}
ONLY_IN_JSON = (
    "isolated_tokens_s", "isolated_memory_gb", "isolated_power_w", "isolated_energy_mj", "power_w", "texts",
    "plain_tokens_equal", "plain_actions_error", "hf_tokens_equal", "cell",
)  # fmt: skip


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Columns as wide as what is in them."""
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in ONLY_IN_JSON]
    cells = [
        [TITLES.get(name, name) for name in names],
        *([_text(row.get(name)) for name in names] for row in rows),
    ]
    widths = [max(LEAST, *(len(cell) for cell in column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    return "\n".join(line.rstrip() for line in lines)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
