"""How smooth the joints are when messages take longer to the controller, before and after adaptation.

The scene of scene.py with our motion. Before, the delay is assumed to be `LEAD_S`, whatever it is;
after, it has been measured for some seconds from what the controller executes (control/outputs/delivery.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from handovers import Parameters, scene
from handovers.styles import Moving
from vla_accel_ros.control.outputs.reports import ReportedState

DELAYS_S = (0.0, 0.01, 0.03, 0.05, 0.06, 0.1, 0.15, 0.2)
MODES = ("blend", "async")
LEAD_S, LEAD_MAX_S = Parameters().lead_s, Parameters().lead_max_s
_SECONDS, _LEARNING_S = 8, 4


@dataclass(frozen=True)
class Late:
    """One delay. fixed, adapted: peak acceleration [rad/s^2] with the expected and the measured lead_s."""

    mode: str
    delay_s: float
    fixed: float
    adapted: float
    lead_s: float


def table() -> list[Late]:
    """Every mode and delay."""
    return [measure(mode, delay_s) for mode in MODES for delay_s in DELAYS_S]


def lines(rows: Iterable[Late]) -> Iterable[str]:
    """The table in Markdown."""
    yield f"| mode | delay ms | lead_s = {LEAD_S}: peak acceleration rad/s^2 | adapted | to lead_s |"
    yield "|---|---|---|---|---|"
    for row in rows:
        delay_ms = 1e3 * row.delay_s
        yield f"| {row.mode} | {delay_ms:.0f} | {row.fixed:,.0f} | {row.adapted:,.0f} | {row.lead_s:.3f} |"


def measure(mode: str, delay_s: float) -> Late:
    """One mode and delay."""
    fixed, _ = _play(mode, delay_s, measures=False)
    adapted, lead_s = _play(mode, delay_s, measures=True)
    return Late(mode, delay_s, fixed, adapted, lead_s)


def _play(mode: str, delay_s: float, measures: bool) -> tuple[float, float]:
    """Peak acceleration after some seconds, and the lead_s of the end."""
    controller = scene.Motors(from_desired=True)

    def state(now_ns: int) -> ReportedState:
        point = controller.desired(now_ns)
        positions = dict(zip(scene.JOINTS, point.position.tolist()))
        return ReportedState(controller.began_ns, now_ns, positions, point.velocity is None)

    sender = Moving(scene.JOINTS, scene.LIMITS, mode, state=state if measures else None)
    commanded = scene.play(sender, controller, delay_s, _SECONDS, seed=0)
    return scene.smoothness(mode, True, commanded, _LEARNING_S).acceleration, sender.lead_s
