"""Checks every chunk, wherever it comes from: its shape, the amount of motion, and whether the motion makes
sense.

Blending, limiting and sending take time in proportion to the number of actions, and a chunk is another
process's message. A message of 48 kB that asks for hours of motion must not keep a robot from being stopped.
Every reader of chunks therefore calls `check_chunk_size` before it looks at a single number.

Limiting alone would drive the robot smoothly to the ends of its joints on a meaningless chunk. Targets that
are only slightly beyond a limit are ordinary, and get limited: policies overshoot, ask for a bit more than
the motors give, and begin where they believe the robot to be. Targets that are beyond it by a factor are
refused: a checkpoint of another robot, wrong units, a broken publisher.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.types import Chunk

MOST_ACTIONS = 256
MOST_JOINTS = 256
LONGEST_S = 60.0
SHORTEST_STEP_S = 1e-3
LONGEST_STEP_S = 1.0
BEYOND = 0.25
"""How far outside its range a target may be, as a share of the range."""
TOO_FAST = 5.0
"""How many times faster than its velocity limit a joint may be asked to move between two actions."""
_LEAST_STEP = 0.1


def check_chunk_size(what: str, actions: int, joints: int, step_dt_s: float) -> None:
    """Raises ValueError, in one sentence that begins with `what`, if a chunk of `actions` rows and `joints`
    columns, `step_dt_s` seconds apart, is too large."""
    if actions > MOST_ACTIONS:
        raise ValueError(f"{what} has {actions} actions: send at most {MOST_ACTIONS}")
    if joints > MOST_JOINTS:
        raise ValueError(f"{what} has {joints} joints: send at most {MOST_JOINTS}")
    if not SHORTEST_STEP_S <= step_dt_s <= LONGEST_STEP_S:
        raise ValueError(
            f"{what} has step_dt_s {step_dt_s}: it must be at least {SHORTEST_STEP_S:g} s and at most "
            f"{LONGEST_STEP_S:g} s"
        )
    if actions * step_dt_s > LONGEST_S:
        raise ValueError(f"{what} asks for {actions * step_dt_s:g} s of motion: send at most {LONGEST_S:g} s")


def received_chunk(
    who: str,
    joints: tuple[str, ...],
    *,
    names: Sequence[str],
    actions: np.ndarray,
    horizon: int,
    columns: int,
    execution_horizon: int,
    step_dt_s: float,
    stamp_ns: int,
    kv_version: int,
    request_id: int,
    update_magnitudes: np.ndarray,
) -> Chunk:
    """Returns the Chunk that another process made, its columns in the order of `joints`.

    names: of its columns. actions float32 [H, D] or flat; update_magnitudes float32 [any]; execution_horizon:
    0 for all.
    Raises ValueError, in one sentence that begins with `who`, if it is larger than check_chunk_size allows,
    its shape does not fit the numbers, a joint is missing, or an action is not finite.
    """
    check_chunk_size(who, horizon, columns, step_dt_s)
    if horizon < 1 or np.size(actions) != horizon * columns or len(names) != columns:
        raise ValueError(
            f"{who} says {horizon} x {columns} but has {np.size(actions)} numbers for {len(names)} joints"
        )
    if execution_horizon > horizon:
        raise ValueError(
            f"{who} is to be executed for {execution_horizon} actions but has {horizon}: give 0 for all"
        )
    names = tuple(names)
    actions = actions.reshape(horizon, columns)
    if not np.isfinite(actions).all():
        row, column = np.argwhere(~np.isfinite(actions))[0]
        raise ValueError(
            f"{who} has {actions[row, column]} for joint {names[column]!r} in action {row}, "
            "which is no number to move to"
        )
    if names != joints:
        missing = [name for name in joints if name not in names]
        if missing:
            raise ValueError(f"{who} has no joint {missing[0]!r}: it has {', '.join(names)}")
        actions = actions[:, [names.index(name) for name in joints]]
    return Chunk(
        actions=actions,
        stamp_ns=stamp_ns,
        step_dt_s=step_dt_s,
        kv_version=kv_version,
        request_id=request_id,
        update_magnitudes=update_magnitudes,
        execution_horizon=execution_horizon or None,
    )


def nonsense(
    actions: np.ndarray, step_dt_s: float, joints: tuple[str, ...], limits: JointLimits, flips: np.ndarray
) -> str:
    """Returns one sentence that says why a chunk's targets, float [H, D] in ROS units, are refused; empty if
    they are not.

    flips: bool [D], joints that may be asked to go from end to end at once, such as grippers.
    """
    actions = np.asarray(actions, dtype=np.float64)
    span = limits.span
    out = np.maximum(actions - limits.upper, limits.lower - actions)
    far = np.argwhere(out > BEYOND * span)
    if len(far):
        row, column = far[0]
        return (
            f"action {row} sends {joints[column]} to {actions[row, column]:.3f}, and it goes from "
            f"{limits.lower[column]:g} to {limits.upper[column]:g}: are the policy and the contract's units "
            "of this robot?"
        )
    steps = np.abs(np.diff(actions, axis=0))
    largest = np.maximum(TOO_FAST * limits.velocity * step_dt_s, _LEAST_STEP * span)
    fast = np.argwhere((steps > largest) & ~flips)
    if len(fast):
        row, column = fast[0]
        return (
            f"action {row + 1} has {joints[column]} {steps[row, column]:.3f} from the action {step_dt_s:g} s "
            f"before, {steps[row, column] / (limits.velocity[column] * step_dt_s):.0f} times what it can go: "
            "are the policy and the contract's units of this robot?"
        )
    return ""
