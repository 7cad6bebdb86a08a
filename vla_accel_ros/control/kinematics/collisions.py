"""Whether the links of a robot touch each other, by the collision shapes of its URDF (Pinocchio and coal).

Links of neighbouring joints are not compared, nor those that touch where the robot is said to be free: its
home, or the middle of its ranges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from vla_accel_ros.control.kinematics.rotations import pinocchio


class Collisions:
    """text: the URDF. folder: where its meshes are. free: positions of the joints that move, by name, without
    a collision. margin_m: links closer than this touch. Raises ValueError if a shape cannot be read, or the
    URDF has none of the joints or less than two shapes."""

    def __init__(self, text: str, folder: Path, free: Mapping[str, float], margin_m: float) -> None:
        pin = self._pin = pinocchio()
        whole = pin.buildModelFromXML(text)
        if absent := [name for name in free if not whole.existJointName(name)]:
            raise ValueError(f"the URDF has no joint {', '.join(absent)}")
        fixed = [i for i, name in enumerate(whole.names) if i and name not in free]
        collision = pin.GeometryType.COLLISION
        shapes = pin.buildGeomFromUrdfString(whole, text, collision, package_dirs=[str(folder)])
        self._model, self._shapes = pin.buildReducedModel(whole, shapes, fixed, pin.neutral(whole))
        if any(joint.nq != 1 for joint in self._model.joints[1:]):
            raise ValueError("a joint that turns without end is not supported")
        links = [self._model.frames[shape.parentFrame].name for shape in self._shapes.geometryObjects]
        if len(set(links)) < 2:
            raise ValueError("the URDF has less than two links with a <collision>")
        self._links, self.joints = links, tuple(self._model.names[1:])
        self._shapes.addAllCollisionPairs()
        for pair in list(self._shapes.collisionPairs):
            first, second = (self._shapes.geometryObjects[i].parentJoint for i in (pair.first, pair.second))
            if first in (second, self._model.parents[second]) or second == self._model.parents[first]:
                self._shapes.removeCollisionPair(pair)
        self._prepare(margin_m)
        touching = self._touching(np.array([free[name] for name in self.joints]))
        for index in sorted(touching, reverse=True):
            self._shapes.removeCollisionPair(self._shapes.collisionPairs[index])
        self._prepare(margin_m)

    def first(self, positions: np.ndarray, joints: Sequence[str]) -> tuple[int, str]:
        """The first of float64 [N, D] positions at which two links touch that do not at the beginning, and
        their names; N and empty if there is none."""
        columns = [list(joints).index(name) for name in self.joints]
        begun = self._touching(positions[0, columns])
        for row, position in enumerate(positions[:, columns]):
            if touching := sorted(self._touching(position) - begun):
                pair = self._shapes.collisionPairs[touching[0]]
                return row, f"{self._links[pair.first]} and {self._links[pair.second]}"
        return len(positions), ""

    def _prepare(self, margin_m: float) -> None:
        self._data, self._results = self._model.createData(), self._shapes.createData()
        for request in self._results.collisionRequests:
            request.security_margin = margin_m

    def _touching(self, position: np.ndarray) -> set[int]:
        """Numbers of the pairs that touch."""
        arguments = self._model, self._data, self._shapes, self._results, position, False
        if not self._pin.computeCollisions(*arguments):
            return set()
        results = self._results.collisionResults
        return {k for k in range(len(self._shapes.collisionPairs)) if results[k].isCollision()}
