"""docs/lab/pipeline.md: the file of figures as Markdown, so that what is published is what was measured.

Tables contain the rows that exist; notes below name what was not measured, failed or is missing, and where
the figures come from. The only computation is the ratio of two figures of one row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import starmap
from typing import Any

from grids.actionflow import drafted_right

Row = dict[str, Any]

NONE = "-"
STEPS = 10

NAMED = 12
"""Cells that were not measured are named if they are no more than these."""

DRAFTS = re.compile(r"speculative (\d+)%")

PACKAGES = ("torch", "triton", "transformers")

OXYGEN = """## Text beside actions: pi0.5, 2 views, prompts of 20 tokens

S is the number of denoising steps, N the tokens of a text, and k the texts that begin with each
frame; there is one request a frame. A cell has frames/s, tokens/s, and frames/s relative to isolated
execution of our own stages."""

ACTIONFLOW = """## Frames in one pipeline: OpenVLA-7B's language model

K is the tokens of an action, L those of the prompt. A cell has frames/s, and the median time from a
frame to its last token. The percentage of a speculative row is the share of its K - 1 draft tokens
that are right when a frame is verified alone. `(a of b)`: in this cell a were accepted on the mean,
instead of the b that the row is named after."""

STAGGERED = """## Chunks begun one step apart: pi0.5, 2 views

Completed chunks/s, and milliseconds from a chunk's first step to its last."""


def render(document: dict[str, Any]) -> str:
    """All sections of its page."""
    parts = {
        "oxygen": (OXYGEN, _oxygen),
        "actionflow": (ACTIONFLOW, _actionflow),
        "staggered": (STAGGERED, _staggered),
    }
    sections = list[str]()
    for name, (title, make) in parts.items():
        part = document.get(name)
        sections += [title, "Not measured."] if part is None else [title, *make(part), _source(part)]
    return "\n\n".join(section.strip() for section in sections if section.strip()) + "\n"


def _oxygen(part: dict[str, Any]) -> Iterable[str]:
    rows = [row for row in part["rows"] if row["arrivals"] == "uniform" and row["steps"] == STEPS]
    per_frame = _values(rows, "per_frame")
    lines = []
    for tokens in _values(rows, "tokens"):
        matching = [row for row in rows if row["tokens"] == tokens]
        alone = [_number(matching[0][name]) for name in ("isolated_frames_s", "plain_frames_s")]
        lines.append([str(tokens), *alone, *(_one(matching, _shared, per_frame=k) for k in per_frame)])
    yield _table([f"S = {STEPS}, N", "isolated", "plain torch", *(f"k = {k}" for k in per_frame)], lines)
    if "beside" in part:
        slack = part["beside"]
        yield (
            f"Text only in the time that actions leave over: {_number(slack['with_text_hz'])} frames/s "
            f"instead of {_number(slack['alone_hz'])}, with {_number(slack['tokens_s'])} tokens/s."
        )


def _actionflow(part: dict[str, Any]) -> Iterable[str]:
    rows = part["rows"]
    tokens, length = _values(rows, "tokens"), min(_values(rows, "prompt"))
    matching = [row for row in rows if row["prompt"] == length]
    lines = [
        [system, *(_one(matching, _aged, system=system, tokens=k) for k in tokens)]
        for system in dict.fromkeys(row["system"] for row in matching)
    ]
    yield _table([f"L = {length}", *(f"K = {k}" for k in tokens)], lines)


def _staggered(part: dict[str, Any]) -> Iterable[str]:
    titles = {"steps": "S", "chunks_s": "chunks/s", "gain": "times sequential"}
    titles |= {"age_p50_ms": "ms", "age_p99_ms": "p99"}
    lines = [[row["system"], *(_number(row.get(name)) for name in titles)] for row in part["rows"]]
    yield _table(["", *titles.values()], lines)


def _source(part: dict[str, Any]) -> str:
    counts = "; ".join(f"{name.replace('_', ' ')}: {value}" for name, value in part.get("counts", {}).items())
    runs: dict[str, list[Row]] = {}
    for run in part["runs"]:
        runs.setdefault(_where(run), []).append(run)
    lines = [f"Measured: {'; '.join(starmap(_runs, runs.items())) or 'nothing'}."]
    lines.append(f"Of what: {counts}." if counts else "")
    missing = part["not_measured"]
    which = "; ".join(missing) if len(missing) <= NAMED else "pipeline.json names them"
    lines.append(
        f"Not measured, {len(missing)} of {len(missing) + _cells(part)} cells: {which}." if missing else ""
    )
    lines += [f"Failed: {cell}: {reason}." for cell, reason in part.get("failed", {}).items()]
    return " ".join(line for line in lines if line)


def _cells(part: dict[str, Any]) -> int:
    """That were measured."""
    return sum(len(run["cells"]) for run in part["runs"])


def _where(run: Row) -> str:
    machine, versions = run["machine"], run["versions"]
    packages = [f"{name} {versions[name]}" for name in PACKAGES if name in versions]
    where = (run["date"][:10], machine.get("gpu", machine["cpu"]), run["dtype"], *packages)
    return f"{', '.join(where)}, plan {run['plan']}"


def _runs(where: str, runs: Sequence[Row]) -> str:
    """Runs of one day and machine; those that share a plan out have a GPU each."""
    shared = any("share" in run for run in runs)
    several = f" in {len(runs)} runs{', each on a GPU of its own' * shared}" if len(runs) > 1 else ""
    cells = sum(len(run["cells"]) for run in runs)
    return f"{where}, {cells} cell{'s' * (cells != 1)}{several}"


def _shared(row: Row) -> str:
    return f"{_number(row['frames_s'])}, {_number(row['tokens_s'])} ({row['over_isolated']:.1f} x)"


def _aged(row: Row) -> str:
    """With what was accepted, where that is not what the row's name says."""
    if "none" in row:
        return NONE
    text = f"{_number(row['frames_s'])}, {_number(row['age_p50_ms'])} ms"
    named = DRAFTS.match(row["system"])
    if named is None:
        return text
    right = drafted_right(int(named[1]) / 100, row["tokens"])
    return text if row["accepted"] == right else f"{text} ({_number(row['accepted'])} of {right})"


def _one(rows: Sequence[Row], text: Callable[[Row], str], **wanted: Any) -> str:
    """The row that has what is wanted, as text."""
    matching = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    return text(matching[0]) if matching else NONE


def _values(rows: Sequence[Row], name: str) -> list[Any]:
    return sorted({row[name] for row in rows})


def _number(value: Any) -> str:
    """Three digits and more where they are before the point."""
    if not isinstance(value, (int, float)):
        return NONE if value is None else str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    ruled = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in ruled).replace("|  |", "| |")
