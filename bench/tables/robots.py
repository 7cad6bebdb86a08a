"""Tables of robots' first hours."""

from __future__ import annotations

from collections.abc import Iterator

from tables.forms import Line, result, table


@table
def first_hour() -> Iterator[Line]:
    """Seconds of every step, by robot."""
    robots = result("first_hour")["robots"]
    yield "step, seconds", *(robot["robot"] for robot in robots)
    for steps in zip(*(robot["steps"] for robot in robots)):
        yield steps[0]["step"], *(f"{step['s']:.0f}" for step in steps)
    yield "filled in by hand", *(str(robot["filled_in"]) for robot in robots)


@table
def mistakes() -> Iterator[Line]:
    """Where each mistake was told."""
    rows = result("first_hour")["mistakes"]
    told = [row["command"].removeprefix("vla ") if row["told"] else "nothing" for row in rows]
    yield "told by", "mistakes"
    for command in dict.fromkeys(told):
        yield command, ", ".join(row["mistake"] for row, by in zip(rows, told) if by == command)
