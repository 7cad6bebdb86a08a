"""Where a chunk leads the links of a robot, by the URDF that the robot publishes.

Pinocchio computes it: it has wheels for x86_64 and aarch64, reads every kind of joint, and needs no meshes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from math import cos, sin
from pathlib import Path
from typing import Any

import numpy as np

from vla_accel_ros.contract.files import urdf


class Kinematics:
    """Paths of the tips: links by name, or the last link of each chain of joints that chunks move.

    text: the URDF. joints: those that chunks move. Raises ValueError if the URDF is damaged or has no such
    joint or link, or Pinocchio is not installed.
    """

    def __init__(self, text: str, joints: Sequence[str], tips: Sequence[str] = ()) -> None:
        urdf.parse(text.encode(), Path("robot_description"))  # refuses what a library should not see
        try:
            self._pin: Any = import_module("pinocchio")
        except ImportError as error:
            raise ValueError(f"paths of chunks need Pinocchio ({error}): pip install pin") from error
        self._model = self._pin.buildModelFromXML(text)
        self._data = self._model.createData()
        self._moved = [name for name in joints if self._model.existJointName(name)]
        if not self._moved:
            raise ValueError(f"robot_description has none of the chunks' joints {', '.join(joints)}")
        bodies = [frame for frame in self._model.frames if frame.type == self._pin.FrameType.BODY]
        self.frame: str = bodies[0].name
        """The root link, in which paths are."""
        if unknown := set(tips) - {body.name for body in bodies}:
            links = ", ".join(body.name for body in bodies)
            raise ValueError(f"robot_description has no link {', '.join(sorted(unknown))}: it has {links}")
        self.tips = list(tips) or [self._last(joint, bodies) for joint in self._ends()]

    def paths(
        self, joints: Sequence[str], actions: np.ndarray, present: Mapping[str, float]
    ) -> dict[str, np.ndarray]:
        """The positions of each tip, float64 [h, 3] in metres.

        actions: [h, D], positions of `joints`. present: of other joints; those in neither are at 0.
        """
        positions: dict[str, list[np.ndarray]] = {tip: [] for tip in self.tips}
        indices = {tip: self._model.getFrameId(tip) for tip in self.tips}
        for row in actions:
            configuration = self._configuration({**present, **dict(zip(joints, map(float, row)))})
            self._pin.framesForwardKinematics(self._model, self._data, configuration)
            for tip, index in indices.items():
                positions[tip].append(self._data.oMf[index].translation.copy())
        return {tip: np.array(points).reshape(-1, 3) for tip, points in positions.items()}

    def _configuration(self, positions: Mapping[str, float]) -> np.ndarray:
        configuration: np.ndarray = self._pin.neutral(self._model)
        for name, joint in zip(self._model.names, self._model.joints):
            if (position := positions.get(name)) is not None:
                turns = joint.nq == 2  # a continuous joint
                configuration[joint.idx_q : joint.idx_q + joint.nq] = (
                    (cos(position), sin(position)) if turns else position
                )
        return configuration

    def _ends(self) -> list[int]:
        """The moved joints with no moved joint behind them."""
        moved = {self._model.getJointId(name) for name in self._moved}
        inner: set[int] = set()
        for joint in moved:
            while (joint := self._model.parents[joint]) != 0:
                inner.add(joint)
        return sorted(moved - inner)

    def _last(self, joint: int, bodies: Sequence[Any]) -> str:
        return str([body.name for body in bodies if body.parentJoint == joint][-1])
