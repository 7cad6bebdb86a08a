"""How smooth the joints are when messages take longer to the controller, before and after adaptation.

The scene of scene.py with our trajectory buffer. Before, the delay is assumed to be `LEAD_S`, whatever it is;
after, it has been measured for some seconds from what the controller executes (control/delivery.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from handovers import scene
from handovers.styles import Message, message
from vla_accel_ros.control.chunking.buffer import Mode, TrajectoryBuffer
from vla_accel_ros.control.delivery import Delivery
from vla_accel_ros.sim.controller import JointTrajectoryController
from vla_accel_ros.types import Chunk

DELAYS_S = (0.0, 0.01, 0.03, 0.05, 0.06, 0.1, 0.15, 0.2)
MODES: tuple[Mode, ...] = ("blend", "async")
LEAD_S, LEAD_MAX_S = 0.03, 0.15  # defaults of the trajectory node
_SECONDS, _LEARNING_S = 8, 4


@dataclass(frozen=True)
class Late:
    """One delay. fixed, adapted: peak acceleration [rad/s^2] with the expected and the measured lead_s."""

    mode: Mode
    delay_s: float
    fixed: float
    adapted: float
    lead_s: float


class _Sender:
    """Our buffer, and what it learns of its way to the controller; with no delivery it learns nothing."""

    def __init__(self, mode: Mode, controller: JointTrajectoryController, delivery: Delivery | None) -> None:
        self.buffer = TrajectoryBuffer(scene.JOINTS, scene.LIMITS, mode, lead_s=LEAD_S)
        self.buffer.reset(scene.reference(scene.BEGIN_S))
        self._controller, self._delivery = controller, delivery

    def take(self, chunk: Chunk, now_ns: int) -> Message | None:
        sent = self.buffer.update(chunk, now_ns)
        if sent is not None and self._delivery is not None:
            self._delivery.sent(sent.start_ns, now_ns, now_ns)
        return None if sent is None else message(sent)

    def tick(self, now_ns: int) -> Message | None:
        if self._delivery is not None:
            self._delivery.executing(self._controller.began_ns, now_ns)
            self.buffer.lead_s = self._delivery.step(now_ns)
        return None


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


def measure(mode: Mode, delay_s: float) -> Late:
    """One mode and delay."""
    fixed, _ = _play(mode, delay_s, None)
    adapted, lead_s = _play(mode, delay_s, Delivery(LEAD_S, LEAD_MAX_S))
    return Late(mode, delay_s, fixed, adapted, lead_s)


def _play(mode: Mode, delay_s: float, delivery: Delivery | None) -> tuple[float, float]:
    """Peak acceleration after some seconds, and the lead_s of the end."""
    controller = scene.controller(from_desired=True)
    sender = _Sender(mode, controller, delivery)
    commanded = scene.play(sender, controller, delay_s, _SECONDS, seed=0)
    return scene.smoothness(mode, True, commanded, _LEARNING_S).acceleration, sender.buffer.lead_s
