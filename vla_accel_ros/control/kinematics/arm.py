"""The joints between two links of a robot: where they lead the second, and what leads it somewhere.

Backwards it is Pinocchio's closed-loop inverse kinematics: Newton steps on the error of the pose, damped by
its square (Sugihara, 2011), so that the steps stay small near a singularity. Each pose starts from the joints
of the one before, so the arm does not change its configuration on the way. A joint more than needed is drawn
to the middle of its range where that does not move the hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, inf, sin
from typing import Any

import numpy as np

from vla_accel_ros.control.kinematics.rotations import pinocchio
from vla_accel_ros.control.limits.joint_limits import JointLimits

REACHED_M, REACHED_RAD = 2e-3, 2e-2
"""A pose counts as reached from here on: arms of five joints turn about as they are asked."""
_EXACT = 1e-6
_MOST_STEPS = 60
_FREE = 0.02
"""Share of the way to the middle that a free joint goes in a step."""
_SINGULAR = 0.03
"""Least singular value of the Jacobian [m or rad per rad] of an arm that is not stretched out."""


class Arm:
    """The chain from `base` to `tip`. text: the URDF. joints: those that may move it, with their limits.

    Attributes: `joints`, those of the chain; `columns`, their places in the given ones. Raises ValueError if
    the URDF has no such link, none of the joints is between the two, or one that is not given is.
    """

    def __init__(self, text: str, joints: Sequence[str], limits: JointLimits, base: str, tip: str) -> None:
        pin = self._pin = pinocchio()
        whole = pin.buildModelFromXML(text)
        links = [frame.name for frame in whole.frames if frame.type == pin.FrameType.BODY]
        for link in (base, tip):
            if link not in links:
                raise ValueError(f"the URDF has no link {link!r}: it has {', '.join(links)}")
        above, below = (
            list(whole.supports[whole.frames[whole.getFrameId(x)].parentJoint]) for x in (base, tip)
        )
        chain = [whole.names[joint] for joint in below if joint not in above]
        if moving := [whole.names[joint] for joint in above if joint not in below and joint != 0]:
            raise ValueError(f"{base} is moved by {', '.join(moving)}, which do not move {tip}: take another")
        if not chain or (absent := [name for name in chain if name not in joints]):
            problem = f"joint {', '.join(absent)} of the URDF moves it" if chain else "no joint moves it"
            raise ValueError(
                f"from {base} to {tip} {problem}, which is not in joints: add it, or fix the links"
            )
        fixed = [i for i, name in enumerate(whole.names) if i and name not in chain]
        self._model = pin.buildReducedModel(whole, fixed, pin.neutral(whole))
        self._data = self._model.createData()
        self._base, self._tip = self._model.getFrameId(base), self._model.getFrameId(tip)
        self.joints = tuple(self._model.names[1:])
        self.columns = np.array([list(joints).index(name) for name in self.joints])
        self.limits = limits.select(self.columns)
        self._reach = self._reaches_at_most()
        self._turns = [joint.nq == 2 for joint in self._model.joints[1:]]

    def pose(self, positions: np.ndarray) -> Any:
        """The pose (SE3) of the tip in the base at float64 [J] positions."""
        self._pin.framesForwardKinematics(self._model, self._data, self._configuration(positions))
        return self._data.oMf[self._base].actInv(self._data.oMf[self._tip])

    def jacobian(self, positions: np.ndarray) -> np.ndarray:
        """How the tip moves, float64 [6, J], by its own axes, with the joints."""
        configuration, local = self._configuration(positions), self._pin.ReferenceFrame.LOCAL
        return np.asarray(
            self._pin.computeFrameJacobian(self._model, self._data, configuration, self._tip, local)
        )

    def solve(self, poses: Sequence[Any], seed: np.ndarray) -> np.ndarray:
        """The joints, float64 [n, J], that lead the tip to poses, each found from the one before, the first
        from the seed. It ends before the first pose that is not reached; see `why`."""
        solved, positions = [], np.clip(seed, self.limits.lower, self.limits.upper)
        for pose in poses:
            positions = self._towards(pose, positions)
            if not self._reaches(pose, positions):
                self._missed = pose, positions
                break
            solved.append(positions)
        return np.array(solved).reshape(-1, len(self.joints))

    def why(self) -> str:
        """Why the last pose was not reached, in words."""
        pose, positions = self._missed
        singular = np.linalg.svd(self.jacobian(positions), compute_uv=False)[min(6, len(self.joints)) - 1]
        error = self._error(pose, positions)
        goal, off = np.round(pose.translation, 3).tolist(), float(np.linalg.norm(error[:3]))
        at_end = np.minimum(positions - self.limits.lower, self.limits.upper - positions) < 1e-4
        ends = [name for name, ends in zip(self.joints, at_end) if ends]
        cause = "no joints lead it there"
        if ends:
            cause = f"{', '.join(ends)} is at the end of its range"
        elif singular < _SINGULAR:
            cause = "the arm is stretched out or folded there (singular)"
        turned = f" and {float(np.linalg.norm(error[3:])):.2f} rad"
        return f"{goal} m is out of its reach by {off:.3f} m{turned}: {cause}"

    def way(self, around: np.ndarray, away: np.ndarray) -> np.ndarray:
        """How far the tip goes and turns at most [m, rad], float64 [2], while each joint goes a distance at
        which it is nowhere further from a place, float64 [J] each.

        The tip is as far from a joint's axis as at that place, and further by what the joints behind it move
        it; never further than they are long.
        """
        moved = self._reach[0] * away
        behind = np.cumsum(moved[::-1])[::-1] - moved
        arms = np.linalg.norm(self.jacobian(around)[:3], axis=0) + behind
        return np.array([np.minimum(arms, self._reach[0]), self._reach[1]]) @ away

    def _reaches_at_most(self) -> np.ndarray:
        """How far the tip moves and turns at most with each joint [per rad or m], float64 [2, J]."""
        model = self._model
        slides = np.array([joint.shortname().startswith("JointModelP") for joint in model.joints[1:]])
        ways = np.maximum(np.abs(self.limits.lower), np.abs(self.limits.upper))
        lengths = [np.linalg.norm(place.translation) for place in [*model.jointPlacements][1:]]
        lengths += np.where(slides, ways, 0.0)
        beyond = np.linalg.norm(model.frames[self._tip].placement.translation) + np.cumsum(lengths[::-1])
        arms = beyond[::-1] - lengths
        return np.where(slides, [[1.0], [0.0]], [arms, np.ones_like(arms)])

    def _towards(self, pose: Any, positions: np.ndarray) -> np.ndarray:
        """The nearest positions on the way to a pose: about one out of reach the steps do not settle."""
        nearest, smallest = positions, inf
        free = len(self.joints) > 6
        middle = (self.limits.lower + self.limits.upper) / 2
        for _ in range(_MOST_STEPS):
            jacobian = self.jacobian(positions)
            error = self._error(pose, positions)
            size = float(error @ error)
            if size < smallest:
                nearest, smallest = positions, size
            if size < _EXACT**2:
                break
            inverse = np.linalg.solve(jacobian @ jacobian.T + (0.5 * size + 1e-9) * np.eye(6), jacobian).T
            step = inverse @ error
            if free and not self.limits.continuous.any():
                away = _FREE * (middle - positions)
                step += away - inverse @ (jacobian @ away)
            moved = np.clip(positions + step, self.limits.lower, self.limits.upper)
            if np.abs(moved - positions).max() < 1e-9:
                break
            positions = moved
        return nearest

    def _error(self, pose: Any, positions: np.ndarray) -> np.ndarray:
        """From the tip to a pose, float64 [6], by the axes of the tip."""
        return np.asarray(self._pin.log6(self.pose(positions).actInv(pose)).vector)

    def _reaches(self, pose: Any, positions: np.ndarray) -> bool:
        error = self._error(pose, positions)
        return bool(np.linalg.norm(error[:3]) <= REACHED_M and np.linalg.norm(error[3:]) <= REACHED_RAD)

    def _configuration(self, positions: np.ndarray) -> np.ndarray:
        if not any(self._turns):
            return np.asarray(positions, np.float64)
        pairs = zip(np.asarray(positions, np.float64).tolist(), self._turns)
        return np.array([x for p, turns in pairs for x in ((cos(p), sin(p)) if turns else (p,))])
