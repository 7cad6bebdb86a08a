"""An arm whose controller executes what reaches it, however late."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from executed import Broken, TrajectoryController, judge_path
from motion import JOINTS, LIMITS, S, make_ramp

from vla_accel_ros.control.chunking.buffer import TrajectoryBuffer
from vla_accel_ros.control.outputs.hand_over import HandOver
from vla_accel_ros.control.trajectory import Trajectory, TrajectoryPoint

MS = 1_000_000


LEAD_S = 0.03


LEAD = round(LEAD_S * S)


START = np.zeros(3)


class Arm:
    """One controller, and what it is sent. Attribute `now`."""

    def __init__(self, handed_over: bool = True) -> None:
        self.now, self.hand_over, self._handed_over = S, HandOver(LIMITS), handed_over
        self.buffer = TrajectoryBuffer(JOINTS, LIMITS, lead_s=LEAD_S, max_age_s=1.0)
        self.buffer.reset(START)
        self._controller = TrajectoryController(JOINTS, START, True)
        self._controller.starts[0] = self.now
        self.send(self.buffer.go_to(START, np.full(3, 0.1), self.now), 0, 0)
        self.now += S

    def send(self, decided: Trajectory | None, held_up: int, travels: int, waits: int = 0) -> None:
        """Held up before it is asked what to send, and, where that is allowed, waits after it."""
        if decided is None:
            return
        decided_ns, self.now = self.now, self.now + held_up
        path: Trajectory | None = decided
        if self._handed_over:
            path, by_ns = self.hand_over.next(decided, decided_ns, self.now, LEAD_S)
            if path is None:
                return
            assert by_ns >= self.now
            self.now = min(self.now + waits, by_ns)
            self.hand_over.sent(path, decided, self.now)
        at_ns = self.now + travels
        state = self._controller.state(at_ns)
        assert path is not None
        assert self._controller.accept(with_hold(path), at_ns, TrajectoryPoint(at_ns, state.position))
        self.now = at_ns

    def stop(self, braking: Trajectory | None) -> Trajectory | None:
        """What is to be sent if the clock is set now, and back at once."""
        return self.hand_over.stop(braking, self.now, self.now, self.now, LEAD_S)

    def activate(self, position: np.ndarray) -> None:
        """It was off, and holds here from now on."""
        self._controller.hold(position, self.now)

    def accept(self, path: Trajectory | None) -> None:
        """Without asking: a stop after the clock was set."""
        assert path is not None
        assert self._controller.accept(with_hold(path), self.now, TrajectoryPoint(self.now, self.position))

    def broken(self) -> list[Broken]:
        times, positions = self._controller.path(self.now)
        return judge_path(times, positions, LIMITS, *self._controller.exceptions)

    def state(self, t_ns: int) -> TrajectoryPoint:
        return self._controller.state(t_ns)

    @property
    def position(self) -> np.ndarray:
        return self._controller.state(self.now).position


def with_hold(path: Trajectory) -> Trajectory:
    """As messages are, so that they have not ended when they come."""
    end = Trajectory(path.joints, np.array([path.end_ns + S]), path.positions[-1:], np.zeros((1, 3)))
    return path.then(end)


def play(
    arm: Arm, seed: int, held_up: float, travels: int = LEAD, then: Callable[[], None] = lambda: None
) -> None:
    """Chunks every 100 ms or later, some stops, and joins after them; a third is held up for so long [s] at
    most, and then travels for less than so many ns. then: called after each."""
    rng = np.random.default_rng(seed)

    def send(decided: Trajectory | None) -> None:
        late_s = rng.uniform(0.0, held_up) * (rng.random() < 1 / 3)
        travelled, waits = rng.integers((travels, LEAD)).tolist()
        arm.send(decided, round(late_s * S), travelled, waits)

    for k in range(60):
        speed, position = rng.uniform(-0.5, 0.5, 3), arm.buffer.reference(arm.now - 80 * MS)[0]
        chunk = make_ramp(speed, 12, 0.05, start=position, stamp_ns=arm.now - 80 * MS, request_id=k)
        send(arm.buffer.update(chunk, arm.now))
        if rng.random() < 0.15:
            send(arm.buffer.stop(arm.now))
            arm.now += S
            send(arm.buffer.go_to(arm.position, np.full(3, 0.1), arm.now))
            arm.now += S
        then()
        arm.now += 100 * MS
