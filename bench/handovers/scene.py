"""The scene in which hand-over styles are compared: what a motor sees between chunks of 10 Hz.

Two joints should follow a 0.5 Hz reference (peaks 1.57 rad/s, 4.9 rad/s^2). Chunks of 30 Hz knots come at
10 Hz, 100 ms after their observation, and err by 10 mrad (normal, one error a chunk and joint); a message
takes 3 ms to the controller, or what a row says. The controller is the simulated arm's, which samples as
joint_trajectory_controller does: a new trajectory replaces the old one and starts from the commanded or the
measured state (motors lag by 20 ms), as its parameter interpolate_from_desired_state says. It is sampled at
500 Hz.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from handovers.styles import STYLES, Message, Style
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.trajectory import Trajectory, TrajectoryPoint
from vla_accel_ros.sim.controller import JointTrajectoryController
from vla_accel_ros.types import Chunk

JOINTS = ("pan", "lift")
LIMITS = JointLimits(*np.array([[-3.0, -3.0], [3.0, 3.0], [50.0, 50.0], [1e5, 1e5]]))
STEP_DT_S = 1 / 30
BEGIN_S = 1  # a stamp of zero would mean "on arrival"
_S = 1_000_000_000
_BEGIN = BEGIN_S * _S
_TICK, _PERIOD, _LATENCY = _S // 500, _S // 10, _S // 10
_POINTS_EVERY = 17  # ticks between two points of a style that sends single ones: 30 Hz
DELAY_S = 0.003
_MOTOR_LAG_S = 0.02
_ERROR = 0.01
_SETTLING_S = 4  # ours begins to move when the joints have stood still for a moment


@dataclass(frozen=True)
class Smoothness:
    """What was commanded after the first seconds, over both joints.

    acceleration [rad/s^2] and velocity [rad/s] are peaks of differences at 500 Hz; error: RMS to the
    reference [rad].
    """

    style: str
    from_desired: bool
    acceleration: float
    velocity: float
    error: float


def reference(t_s: np.ndarray | float) -> np.ndarray:
    """Where the joints should be, float64 [..., 2] rad."""
    return np.stack([0.5 * np.sin(np.pi * t_s), 0.5 * np.cos(np.pi * t_s)], axis=-1)


class Motors(JointTrajectoryController):
    """The controller with parameters that decide what a hand-over does.

    from_desired: whether a new trajectory starts from the last command (interpolate_from_desired_state) or
    from the measured state. positions_upsampling: points without velocities get those of a cubic spline at
    rest at both ends. A real controller stamps the last command, which is meant for now, with the time of the
    update before, so a trajectory that starts from it steps by one update's motion.
    """

    def __init__(self, from_desired: bool, positions_upsampling: bool = False) -> None:
        super().__init__(JOINTS)
        self._from_desired, self._upsampling = from_desired, positions_upsampling
        self.measured, self.speed = reference(BEGIN_S), np.zeros(2)

    def beginning(self, now_ns: int) -> TrajectoryPoint:
        if self._from_desired:
            return replace(self.desired(now_ns), stamp_ns=now_ns - _TICK)
        return TrajectoryPoint(now_ns, self.measured, self.speed)

    def receive(self, message: Message, now_ns: int) -> None:
        """Take a message; stamp 0 starts now."""
        times_ns = (message.stamp_ns or now_ns) + np.asarray(message.times_from_start_ns, np.int64)
        trajectory = Trajectory(JOINTS, times_ns, message.positions, message.velocities)
        if self._upsampling and trajectory.velocities is None and len(trajectory) > 1:
            trajectory = replace(trajectory, velocities=spline_velocities(trajectory))
        self.accept(trajectory, now_ns)


def spline_velocities(trajectory: Trajectory) -> np.ndarray:
    """Velocities, float64 [N, D], of the cubic spline through N >= 2 points that is at rest at both ends.

    Between the ends the acceleration is continuous: with h the time to the next point and p the positions,
    v[i-1] / h[i-1] + 2 v[i] (1 / h[i-1] + 1 / h[i]) + v[i+1] / h[i]
    = 3 (p[i] - p[i-1]) / h[i-1]^2 + 3 (p[i+1] - p[i]) / h[i]^2.
    """
    p, h = trajectory.positions, np.diff(trajectory.times_ns) * 1e-9
    system, right = np.eye(len(p)), np.zeros_like(p)
    inner = np.arange(1, len(p) - 1)
    system[inner, inner - 1], system[inner, inner + 1] = 1 / h[:-1], 1 / h[1:]
    system[inner, inner] = 2 / h[:-1] + 2 / h[1:]
    slope = 3 * np.diff(p, axis=0) / np.square(h)[:, None]
    right[inner] = slope[:-1] + slope[1:]
    return np.linalg.solve(system, right)


def measure(
    style: str, from_desired: bool, seconds: int = 8, seed: int = 0, **parameters: bool
) -> Smoothness:
    """Run one style against one controller."""
    sender = STYLES[style](JOINTS, LIMITS)
    commanded = play(sender, Motors(from_desired, **parameters), DELAY_S, seconds, seed)
    return smoothness(style, from_desired, commanded)


def smoothness(
    style: str, from_desired: bool, commanded: np.ndarray, settling_s: int = _SETTLING_S
) -> Smoothness:
    """How smooth commanded positions [ticks, 2] are after settling_s."""
    settled = commanded[settling_s * _S // _TICK :]
    dt_s = _TICK / _S
    asked = reference((_BEGIN + np.arange(len(commanded)) * _TICK) / _S)[-len(settled) :]
    return Smoothness(
        style,
        from_desired,
        acceleration=float(np.abs(np.diff(settled, n=2, axis=0)).max() / dt_s**2),
        velocity=float(np.abs(np.diff(settled, axis=0)).max() / dt_s),
        error=float(np.sqrt(np.square(settled - asked).mean())),
    )


def table(**parameters: bool) -> list[Smoothness]:
    """Every style with both settings, and other parameters of the controller."""
    return [measure(style, flag, **parameters) for style in STYLES for flag in (True, False)]


def lines(rows: Iterable[Smoothness]) -> Iterable[str]:
    """The table in Markdown, one line a style, "interpolate_from_desired_state true / false"."""
    yield "| style | peak acceleration rad/s^2 | peak velocity rad/s | RMS error mrad |"
    yield "|---|---|---|---|"
    pairs: dict[str, dict[bool, Smoothness]] = {}
    for row in rows:
        pairs.setdefault(row.style, {})[row.from_desired] = row
    for style, by in pairs.items():
        true, false = by[True], by[False]
        yield (
            f"| {style} | {true.acceleration:,.0f} / {false.acceleration:,.0f} | "
            f"{true.velocity:.2f} / {false.velocity:.2f} | {1e3 * true.error:.1f} / {1e3 * false.error:.1f} |"
        )


def play(style: Style, controller: Motors, delay_s: float, seconds: int, seed: int) -> np.ndarray:
    """The commanded positions [ticks, 2] of one run, in which a message takes delay_s to the controller."""
    rng = np.random.default_rng(seed)
    controller.start(reference(BEGIN_S))
    computing: list[tuple[int, Chunk]] = []
    travelling: list[tuple[int, Message]] = []
    path = []
    for tick in range(seconds * _S // _TICK):
        now = _BEGIN + tick * _TICK
        if (now - _BEGIN) % _PERIOD == 0:
            computing.append((now + _LATENCY, _observe(now, len(computing), rng)))
        sent = []
        while computing and computing[0][0] <= now:
            sent.append(style.take(computing.pop(0)[1], now))
        if tick % _POINTS_EVERY == 0:
            sent.append(style.tick(now, controller.measured))
        travelling += [(now + round(delay_s * _S), message) for message in sent if message is not None]
        while travelling and travelling[0][0] <= now:
            controller.receive(travelling.pop(0)[1], now)
        commanded = controller.desired(now).position
        controller.speed = (commanded - controller.measured) / _MOTOR_LAG_S
        controller.measured = controller.measured + controller.speed * _TICK / _S
        path.append(commanded)
    return np.array(path)


def _observe(stamp_ns: int, number: int, rng: np.random.Generator) -> Chunk:
    """A chunk of 32 actions on the reference, all off it by the same error."""
    t = stamp_ns / _S + np.arange(1, 33) * STEP_DT_S
    actions = reference(t) + rng.normal(0.0, _ERROR, size=2)
    return Chunk(actions.astype(np.float32), stamp_ns, STEP_DT_S, number, stamp_ns, np.zeros(32, np.float32))
