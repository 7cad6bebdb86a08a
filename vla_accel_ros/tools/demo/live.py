"""A live view of the demo on one screen, four times a second.

It shows what the nodes publish about themselves; it stores nothing and waits for nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from vla_accel_ros.sim.tasks import FAMILIES
from vla_accel_ros.tools.demo.play import Board, Played

if TYPE_CHECKING:
    from vla_accel_ros.nodes.clients.operator import Operator

REFRESH_HZ = 4


class LiveView:
    """Renders the board and the operator's newest messages."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self.operator: Operator | None = None

    def render(self) -> RenderableType:
        """Return the present screen."""
        if self.operator is None or self._board.plan is None:
            return Text("starting sim_robot, inference and trajectory ...", style="dim")
        operator = self.operator
        tables = Columns([_streams(operator), _loops(operator), _tasks(self._board.played)], padding=(0, 4))
        return Panel(Group(self._head(operator), Text(), tables), title="vla demo", border_style="dim")

    def _head(self, operator: Operator) -> Table:
        board, truth, answer = self._board, operator.truth, operator.answer
        assert board.plan is not None
        head = Table.grid(padding=(0, 2))
        head.add_column(style="dim")
        number = f"{board.plan.index + 1}" + (f" of {board.wanted}" if board.wanted else "")
        outcome = {"success": "[green]success[/]", "missed": "[red]missed[/]"}.get(board.outcome, "")
        head.add_row("episode", f"{number}   {outcome}")
        changed = "   [yellow]changed on the way[/]" if board.changed else ""
        head.add_row("instruction", f"[bold]{board.said}[/]{changed}")
        text, true = answer.text.strip() if answer else "", truth.answer if truth else ""
        style = "green" if text == true else "yellow" if answer and answer.finished else "bold"
        head.add_row("the model says", f"[{style}]{text or '...'}[/]")
        head.add_row("it is truly", true)
        motion = operator.diagnostics.get("trajectory: motion")
        state = motion.message if motion else "unknown"
        head.add_row("safety", f"[{'green' if state == 'running' else 'yellow'}]{state}[/]")
        simulation = operator.diagnostics.get("sim_robot: simulation")
        values = _values(simulation) if simulation else {}
        head.add_row("real-time factor", _number(values.get("real_time_factor"), 2))
        return head


def _streams(operator: Operator) -> Table:
    table = _table("stream", "Hz", "of", "age ms", "drops")
    for item, line in operator.diagnostics.items():
        node, _, name = item.partition(": stream ")
        if node == "inference" and name:
            values = _values(line)
            table.add_row(
                name,
                _number(values.get("rate [Hz]"), 1),
                _number(values.get("expected [Hz]"), 0),
                _number(values.get("age [s]"), 0, 1e3),
                values.get("drops", "?"),
            )
    return table


def _loops(operator: Operator) -> Table:
    table = _table("loop", "Hz", "of", "p50 ms", "p99 ms", "missed")
    for name, loop in operator.loops.items():
        image = name == "image_to_trajectory"
        table.add_row(
            "image to trajectory" if image else name,
            f"{loop.measured_hz:.1f}",
            "" if image else f"{loop.target_hz:.0f}",
            f"{loop.p50_s * 1e3:.0f}",
            f"{loop.p99_s * 1e3:.0f}",
            str(loop.misses),
        )
    return table


def _tasks(played: list[Played]) -> Table:
    table = _table("task", "success", "of")
    for family in FAMILIES:
        counted = [p for p in played if p.plan.task.family == family and p.counts]
        if counted:
            table.add_row(family, str(sum(p.success for p in counted)), str(len(counted)))
    right, asked = sum(p.answers_right for p in played), sum(len(p.answers) for p in played)
    if asked:
        table.add_row("answers", str(right), str(asked), style="dim")
    return table


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column(first, no_wrap=True)
    for number in numbers:
        table.add_column(number, justify="right", no_wrap=True)
    return table


def _values(line: object) -> dict[str, str]:
    return {pair.key: pair.value for pair in line.values}  # type: ignore[attr-defined]


def _number(text: str | None, digits: int, scale: float = 1.0) -> str:
    try:
        return f"{float(text or '') * scale:.{digits}f}"
    except ValueError:
        return text or "?"
