"""Tables of robots' first hours."""

from __future__ import annotations

from collections.abc import Iterator

from tables.forms import Line, result, table


@table
def first_hour() -> Iterator[Line]:
    """Every step of every robot."""
    for robot in result("first_hour")["robots"]:
        commands, values = f"{robot['s']:.0f} s of commands", f"{robot['filled_in']} values filled in"
        yield f"\n**{robot['robot']}**: {commands}, {values} by hand.\n"
        yield "step", "command", "s", "status", "what it printed last"
        for step in robot["steps"]:
            last = step["last"].replace("|", "\\|")
            yield step["step"], f"`{step['command']}`", f"{step['s']:.1f}", str(step["status"]), last


@table
def mistakes() -> Iterator[Line]:
    """Where each mistake was told."""
    yield "mistake", "told by", "s", "the line"
    for row in result("first_hour")["mistakes"]:
        told = f"`{row['command']}`" if row["told"] else "nothing"
        by_eye = ", which only shows the picture" if row["by_eye"] and row["told"] else ""
        yield row["mistake"], told + by_eye, f"{row['s']:.1f}", row["line"].replace("|", "\\|")
