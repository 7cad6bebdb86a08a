"""Draws the table of a fleet for a terminal, as lines of text, as an SVG picture and as a page."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from vla_accel_ros.tools.fleet.board import Board, Row, Scheduler
from vla_accel_ros.tools.options import write_text

WIDTH = 118
_WIDEST, _WIDEST_LINE = 26, 60
COLUMNS = (
    *(("buffer", "s"), ("queue", "ms"), ("age", "ms"), ("wait ratio", "")),
    *(("stalled", "s"), ("admitted", "Hz"), ("chunks", ""), ("missed", "")),
)
"""Name and unit of each column of numbers."""
# Rich's template without its web fonts: a picture must not need the network.
_SVG = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px; line-height: {line_height}px; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def drawn(board: Board, now_s: float, title: str = "vla fleet top") -> Group:
    """Return the table for a terminal."""
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 1))
    for name in ("robot", "scheduler", "arm"):
        table.add_column(name, no_wrap=True)
    for name, unit in COLUMNS:
        table.add_column(f"{name}\n{unit}", justify="right")
    for row in board.rows(now_s):
        style = "green" if row.well else "yellow"
        state, motion = (Text(_short(text), style) for text in (row.state, row.motion))
        table.add_row(Text(row.robot, "bold"), state, motion, *_numbers(row))
    return Group(Text(f"{title}   {_head(board.scheduler(now_s))}", "bold"), Text(), table)


def lines(board: Board, now_s: float) -> list[str]:
    """Return the table as text: a line for the scheduler, then one for each robot."""
    lines = [_head(board.scheduler(now_s))]
    for row in board.rows(now_s):
        parts = [
            f"{name} {number} {unit}".rstrip()
            for (name, unit), number in zip(COLUMNS, _numbers(row))
            if number != "-"
        ]
        state, motion = _short(row.state, _WIDEST_LINE), _short(row.motion, _WIDEST_LINE)
        lines.append(f"{row.robot}: {state} | {motion} | {', '.join(parts)}")
    return lines


def svg(board: Board, now_s: float, title: str = "vla fleet top") -> str:
    """Return the table at `now_s` as an SVG picture."""
    console = Console(record=True, file=io.StringIO(), width=WIDTH, force_terminal=True)
    console.print(drawn(board, now_s, title))
    return console.export_svg(title="", code_format=_SVG, unique_id="fleet")


def write_svg(board: Board, now_s: float, path: Path, title: str = "vla fleet top") -> None:
    """Write the table at `now_s` as an SVG file. Raises OSError if the file cannot be written."""
    write_text(path, svg(board, now_s, title))


def page(board: Board, now_s: float) -> str:
    """Return a page with the table, which a browser asks for again every second; it needs no network."""
    style = "<style>body { background: #292929; margin: 0 } svg { width: 100%; height: auto }</style>"
    head = f'<meta charset="utf-8"><meta http-equiv="refresh" content="1"><title>fleet</title>{style}'
    return f"<!DOCTYPE html><html><head>{head}</head><body>{svg(board, now_s)}</body></html>"


def _head(scheduler: Scheduler) -> str:
    if not scheduler.well:
        return f"scheduler: {scheduler.said}"
    promised, possible = _text(scheduler.promised_hz, 1), _text(scheduler.possible_hz, 1)
    replicas = ", ".join(scheduler.replicas) or "none"
    load = f"{promised} of {possible} chunks a second promised; replicas: {replicas}"
    return f"{scheduler.rule}: {scheduler.said}; {load}"


def _numbers(row: Row) -> Sequence[str]:
    return (
        _text(row.buffer_s, 2),
        _text(row.queued_s, 0, 1e3),
        _text(row.age_s, 0, 1e3),
        _text(row.wait_ratio, 3),
        _text(row.stalled_s, 1),
        _text(row.rate_hz, 2),
        _text(row.answered, 0),
        _text(row.missed, 0),
    )


def _text(number: float | None, digits: int, scale: float = 1.0) -> str:
    return "-" if number is None else f"{number * scale:.{digits}f}"


def _short(text: str, widest: int = _WIDEST) -> str:
    return text if len(text) <= widest else text[: widest - 3] + "..."
