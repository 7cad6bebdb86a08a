"""Chunks of twists: velocities of the hand instead of joint positions.

There is no path to join or to hold, only a velocity for each moment: that of the action that is due, and zero
before the first and after the last. The hand's speed is limited as a whole, so that its direction stays. It
changes by no more than full speed in RAMP_S. This ramp blends chunks, starts the motion, and stops it when
chunks cease. As with joints, old, overtaken and repeated chunks change nothing.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from vla_accel_ros.control.trajectory import check_finite
from vla_accel_ros.types import Chunk

_COLUMNS = tuple(f"{half}.{axis}" for half in ("linear", "angular") for axis in "xyz")
# Time from full speed to a stop.
RAMP_S = 0.15
_STOOD_S = 0.1


class TwistBuffer:
    """The velocity of the hand over time. Time is given. Use it from one thread at a time.

    per: "step" if an action is a displacement [m, rad], "second" if it is a velocity [m/s, rad/s].
    linear, angular: greatest speeds [m/s], [rad/s].
    period_s: time between two ticks.
    mode: `block` starts a chunk when it arrives, and executes it to its end (or its execution_horizon) before
        the next; in the other modes actions are due by the observation's stamp, and each chunk replaces the
        previous.

    Attributes for diagnostics: `counts` (accepted, past, out_of_order, early; limited: actions that were too
    fast).
    """

    def __init__(
        self,
        per: str,
        linear: float,
        angular: float,
        period_s: float,
        mode: str = "blend",
        execution_horizon: int | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._per_step, self._longest_s = per == "step", 2.0 * period_s
        self._most = np.array([linear, angular])
        self._block, self._execution_horizon = mode == "block", execution_horizon
        self.forget()

    def forget(self) -> None:
        """Command nothing until the next chunk."""
        self._velocity = np.zeros(6)
        self._rows: np.ndarray | None = None
        self._start_ns = self._end_ns = self._step_ns = 0
        self._newest: tuple[int, int] | None = None
        self._tick_ns: int | None = None

    def update(self, chunk: Chunk, now_ns: int) -> bool:
        """Take a chunk whose actions are [H, 6] or wider (the first six columns count). Returns whether it
        changes the motion. Raises ValueError as `check` does."""
        self.check(chunk)
        actions = np.asarray(chunk.actions, dtype=np.float64)[: chunk.executed, :6]
        if self._block and self._execution_horizon is not None:
            actions = actions[: self._execution_horizon]
        step_ns = round(chunk.step_dt_s * 1e9)
        start_ns = now_ns if self._block else chunk.stamp_ns
        end_ns = start_ns + step_ns * len(actions)
        number = (chunk.stamp_ns, chunk.request_id)
        if self._newest is not None and number <= self._newest:
            verdict = "out_of_order"
        elif self._block and min(now_ns, chunk.stamp_ns) < self._end_ns:
            verdict = "early"
        else:
            verdict = "accepted" if now_ns < end_ns else "past"
        self.counts[verdict] += 1
        if verdict != "accepted":
            return False
        rate = 1.0 / chunk.step_dt_s if self._per_step else 1.0
        self._rows = self._limited(actions * rate)
        self._start_ns, self._end_ns, self._step_ns, self._newest = start_ns, end_ns, step_ns, number
        return True

    def check(self, chunk: Chunk) -> None:
        """Raises ValueError for fewer than six columns, and for numbers that are not finite."""
        actions = np.asarray(chunk.actions)
        if actions.ndim != 2 or actions.shape[1] < 6:
            raise ValueError(f"chunk actions have shape {actions.shape}: a twist needs six columns")
        check_finite("twist actions", actions[:, :6], _COLUMNS)

    def stop(self) -> None:
        """Come to a stop; a later chunk moves the hand again."""
        if self._rows is not None:
            self._rows, self._end_ns = np.zeros((1, 6)), 0

    def restart(self, now_ns: int, steady_ns: int | None = None) -> None:
        """Come to a stop after the clock has jumped; now_ns is in the new time."""
        self.stop()
        self._newest = None
        if steady_ns is None:
            self._tick_ns = now_ns

    def tick(self, now_ns: int, steady_ns: int | None = None) -> np.ndarray | None:
        """Linear and angular velocity, float64 [6], to command now; None before the first chunk.

        steady_ns: the present by a clock that is never set; None if now_ns comes from such a clock.
        """
        if self._rows is None:
            return None
        tick_ns = now_ns if steady_ns is None else steady_ns
        passed_s = self._longest_s if self._tick_ns is None else (tick_ns - self._tick_ns) * 1e-9
        self._tick_ns = tick_ns
        if passed_s > _STOOD_S:
            self._velocity = np.zeros(6)
        change = (self._wanted(now_ns) - self._velocity).reshape(2, 3)
        most = self._most / RAMP_S * min(max(passed_s, 0.0), self._longest_s)
        size = np.linalg.norm(change, axis=1)
        share = np.divide(most, size, out=np.ones(2), where=size > most)
        self._velocity = self._velocity + (change * share[:, None]).ravel()
        return self._velocity

    def at_rest(self, now_ns: int) -> bool:
        """Whether the hand is at rest and nothing is left to execute; also before the first chunk."""
        return self._rows is None or (now_ns >= self._end_ns and not self._velocity.any())

    def _wanted(self, now_ns: int) -> np.ndarray:
        if self._rows is None or not self._start_ns <= now_ns < self._end_ns:
            return np.zeros(6)
        return self._rows[(now_ns - self._start_ns) // self._step_ns]

    def _limited(self, rows: np.ndarray) -> np.ndarray:
        halves = rows.reshape(len(rows), 2, 3)
        size = np.linalg.norm(halves, axis=2)
        self.counts["limited"] += int((size > self._most * (1.0 + 1e-6)).any(axis=1).sum())
        share = np.divide(self._most, size, out=np.ones_like(size), where=size > self._most)
        return (halves * share[:, :, None]).reshape(len(rows), 6)
