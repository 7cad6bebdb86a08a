"""Random scenes: positions of blocks and pads, the arm's start, and the path of a block that moves.

Everything is drawn from the given generator, so a seed determines a scene. Positions keep a clearance in
which an open gripper can work, and stay where the arm reaches and the front camera sees.
"""

from __future__ import annotations

import math

import numpy as np

from vla_accel_ros.sim.kinematics import GRIPPER_OPEN, Pose, inverse

REACH_M = (0.145, 0.305)  # radius from the pan axis
X_MIN_M, Y_MAX_M = 0.11, 0.195
_DRIFT_S = 1 / 30
CLEARANCE_M = {("block", "block"): 0.088, ("block", "pad"): 0.075, ("pad", "pad"): 0.11}


def inside(x: float, y: float, margin_m: float = 0.0) -> bool:
    """Whether a point of the table is in the working area, at least margin_m from its rim."""
    low, high = REACH_M
    return (
        low + margin_m <= math.hypot(x, y) <= high - margin_m
        and x >= X_MIN_M + margin_m
        and abs(y) <= Y_MAX_M - margin_m
    )


def anywhere(rng: np.random.Generator) -> tuple[float, float]:
    """A uniform point of the working area [m]."""
    while True:
        x, y = rng.uniform(X_MIN_M, REACH_M[1]), rng.uniform(-Y_MAX_M, Y_MAX_M)
        if inside(x, y):
            return float(x), float(y)


def scatter(rng: np.random.Generator, kinds: tuple[str, ...]) -> list[tuple[float, float]]:
    """One point per kind ("block" or "pad"), pairwise at their clearance. Uniform, by rejection."""
    while True:
        points: list[tuple[float, float]] = []
        for kind in kinds:
            for _ in range(40):
                point = anywhere(rng)
                if all(
                    math.dist(point, other) >= CLEARANCE_M[min(kind, k), max(kind, k)]
                    for other, k in zip(points, kinds)
                ):
                    points.append(point)
                    break
            else:
                break
        if len(points) == len(kinds):
            return points


def home(rng: np.random.Generator) -> tuple[float, ...]:
    """Six joint angles [rad] near the rest pose: gripper open, down, 15 cm above the table, varied a
    little."""
    pose = Pose(
        x=float(rng.uniform(0.17, 0.21)),
        y=float(rng.uniform(-0.04, 0.04)),
        z=float(rng.uniform(0.13, 0.17)),
        pitch=float(rng.uniform(-0.1, 0.1)),
        roll=float(rng.uniform(-0.15, 0.15)),
    )
    return (*inverse(pose), GRIPPER_OPEN + float(rng.uniform(-0.05, 0.05)))


def wander(
    rng: np.random.Generator,
    start: tuple[float, float, float],
    others: list[tuple[float, float]],
    duration_s: float,
    step_s: float,
) -> np.ndarray:
    """Path of a slowly moving block, float64 [N, 3] of x, y [m], yaw [rad], one row per step_s, from (x, y,
    yaw).

    The speed is 2-4 cm/s; it rises in the first half second and falls in the last. The heading drifts
    smoothly and turns away from the rim of the working area and from the other blocks. The draw with the most
    room of several is taken.
    """
    best, best_room = [], -math.inf
    for _ in range(8):
        knots = _drift(rng, start, others, duration_s)
        room = min(_room(x, y, others) for x, y, _ in knots[::6])
        if room > best_room:
            best, best_room = knots, room
        if room > 0:
            break
    grid, fine = np.arange(len(best)) * _DRIFT_S, np.arange(round(duration_s / step_s) + 1) * step_s
    return np.stack([np.interp(fine, grid, values) for values in zip(*best)], axis=1)


def _drift(
    rng: np.random.Generator,
    start: tuple[float, float, float],
    others: list[tuple[float, float]],
    duration_s: float,
) -> list[tuple[float, float, float]]:
    """One draw of `wander`, on a 30 Hz grid."""
    x, y, yaw = start
    heading = float(rng.uniform(-math.pi, math.pi))
    speed = float(rng.uniform(0.02, 0.04))
    phases, rates = rng.uniform(0, 2 * math.pi, 3).tolist(), rng.uniform(0.3, 1.1, 3).tolist()
    knots = [start]
    for i in range(math.ceil(duration_s / _DRIFT_S) + 1):
        t = i * _DRIFT_S
        c, s = math.cos(heading), math.sin(heading)
        away_x, away_y = _repulsion(x + 0.025 * c, y + 0.025 * s, others)
        turn = 0.5 * sum(math.sin(r * t + p) for r, p in zip(rates, phases))
        turn += 90.0 * (c * away_y - s * away_x)
        turn = max(-2.0, min(2.0, turn))
        heading += turn * _DRIFT_S
        yaw += 0.3 * turn * _DRIFT_S
        v = speed * min(1.0, t / 0.5, max(0.0, (duration_s - t) / 0.5))
        x, y = x + v * math.cos(heading) * _DRIFT_S, y + v * math.sin(heading) * _DRIFT_S
        knots.append((x, y, yaw))
    return knots


def _room(x: float, y: float, others: list[tuple[float, float]]) -> float:
    """Distance [m] of a block's centre from leaving the working area or touching another block; negative
    beyond."""
    low, high = REACH_M
    radius = math.hypot(x, y)
    rim = min(radius - low, high - radius, x - X_MIN_M, Y_MAX_M - abs(y)) + 0.012
    return min([rim, *(math.dist((x, y), other) - 0.062 for other in others)])


def _repulsion(x: float, y: float, others: list[tuple[float, float]]) -> tuple[float, float]:
    """Push [m] away from the rim and from other blocks, zero where there is room."""
    low, high = REACH_M
    radius = math.hypot(x, y)
    radial = max(0.0, low + 0.03 - radius) - max(0.0, radius - high + 0.04)
    px, py = radial * x / radius, radial * y / radius
    py -= math.copysign(max(0.0, abs(y) - Y_MAX_M + 0.04), y)
    px += max(0.0, X_MIN_M + 0.03 - x)
    for ox, oy in others:
        distance = math.dist((x, y), (ox, oy)) + 1e-9
        push = max(0.0, 0.085 - distance)
        px, py = px + push * (x - ox) / distance, py + push * (y - oy) / distance
    return px, py
