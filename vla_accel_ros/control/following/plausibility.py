"""Chunks that make no sense: targets far outside the joint ranges, steps that no motor can follow.

Limiting such a chunk would drive the robot to the ends of its joints, smoothly. What is only beyond a limit
is ordinary and limited: policies overshoot, ask for a bit more than the motors give, and begin where they
believe the robot to be. What is refused is beyond that by a factor: a checkpoint of another robot, wrong
units, a broken publisher.
"""

from __future__ import annotations

import numpy as np

from vla_accel_ros.control.limits.joint_limits import JointLimits

BEYOND = 0.25
"""How far outside its range a target may be, as a share of the range."""
TOO_FAST = 5.0
"""How much faster than its motor a joint may be asked to go from action to action."""
_LEAST_STEP = 0.1


def nonsense(
    actions: np.ndarray, step_dt_s: float, joints: tuple[str, ...], limits: JointLimits, flips: np.ndarray
) -> str:
    """Why a chunk's targets, float [H, D] in ROS units, are refused, a sentence; empty when they are not.

    flips: bool [D], joints that may be asked to go from end to end at once, as grippers are.
    """
    actions = np.asarray(actions, dtype=np.float64)
    span = limits.upper - limits.lower
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
    most = np.maximum(TOO_FAST * limits.velocity * step_dt_s, _LEAST_STEP * span)
    fast = np.argwhere((steps > most) & ~flips)
    if len(fast):
        row, column = fast[0]
        return (
            f"action {row + 1} has {joints[column]} {steps[row, column]:.3f} from the action {step_dt_s:g} s "
            f"before, {steps[row, column] / (limits.velocity[column] * step_dt_s):.0f} times what it can go: "
            "are the policy and the contract's units of this robot?"
        )
    return ""
