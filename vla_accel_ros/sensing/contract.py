"""The contract between a robot and a policy, one YAML file per robot.

It says which topic is which image of the policy, in which order and unit the policy counts the joints, what
the robot's limits are, which controller moves which joint, and how old anything may be. Nodes, sensing,
control and the simulator all read this one object, so nothing is said twice. config/contracts/sim_arm.yaml is
the annotated example. Two units meet here: ROS units (rad, m) on every topic and in every limit, the policy's
own in Observation.state and Chunk.actions; `to_policy` and `to_robot` are the only crossing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vla_accel_ros.sensing.fields import Fields

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_TOPIC = rf"{_NAME}(/{_NAME})*"
_NAME_FORM = "a name of letters, digits and underscores"
_TOPIC_FORM = "a relative topic name such as camera/front/image_raw"
_UNITS = {"rad": 1.0, "m": 1.0, "deg": 180.0 / math.pi}


@dataclass(frozen=True)
class Stream:
    """A topic that must keep coming. topic: relative. rate_hz: expected. max_age_s: older is too old."""

    topic: str
    rate_hz: float
    max_age_s: float


@dataclass(frozen=True)
class Camera(Stream):
    """A camera stream. name: ours. image: the policy's name of it (`base_0_rgb`, ...)."""

    name: str
    image: str


@dataclass(frozen=True)
class Joint:
    """One joint. Limits in ROS units (rad or m, s); policy value = scale * position + offset."""

    name: str
    lower: float
    upper: float
    velocity: float
    acceleration: float
    action: str
    unit: str = "rad"
    sign: int = 1
    offset: float = 0.0

    @property
    def scale(self) -> float:
        """Policy units per ROS unit, with the sign."""
        return self.sign * _UNITS[self.unit]


@dataclass(frozen=True)
class Controller:
    """A joint_trajectory_controller's topic and the joints it moves, in its order."""

    topic: str
    joints: tuple[str, ...]


@dataclass(frozen=True)
class ChunkTiming:
    """step_dt_s: seconds between two actions. max_age_s: a chunk whose observation is older is too old."""

    step_dt_s: float
    max_age_s: float


@dataclass(frozen=True)
class Contract:
    """Everything a policy and a robot must agree on; see the module docstring."""

    robot: str
    cameras: tuple[Camera, ...]
    max_skew_s: float
    joint_states: Stream
    joints: tuple[Joint, ...]
    controllers: tuple[Controller, ...]
    chunk: ChunkTiming

    @classmethod
    def load(cls, path: str | Path) -> Contract:
        """Read and check a contract file.

        Raises ValueError, one sentence with the file, the field's path, its value and the mend; OSError when
        the file cannot be read.
        """
        file = Fields.load(path)
        robot = file.text("robot", _NAME, _NAME_FORM)
        cameras = tuple(_camera(name, fields) for name, fields in file.named("cameras", _NAME, _NAME_FORM))
        max_skew_s = file.number("max_skew_s", above=0.0)
        states = file.child("joint_states")
        joint_states = Stream(**_stream(states))
        states.close()
        joints = tuple(_joint(fields) for fields in file.children("joints"))
        controllers = tuple(_controller(fields) for fields in file.children("controllers"))
        chunk = file.child("chunk")
        timing = ChunkTiming(chunk.number("step_dt_s", above=0.0), chunk.number("max_age_s", above=0.0))
        chunk.close()
        file.close()
        _check_names(file, cameras, joint_states, joints, controllers)
        return cls(robot, cameras, max_skew_s, joint_states, joints, controllers, timing)

    @property
    def joint_names(self) -> tuple[str, ...]:
        """Names in the policy's order, the order of every [D] array."""
        return tuple(joint.name for joint in self.joints)

    @property
    def delta_mask(self) -> np.ndarray:
        """bool [D], true where the policy's action is relative to the observed joint."""
        return np.array([joint.action == "delta" for joint in self.joints])

    @property
    def max_ages_s(self) -> dict[str, float]:
        """Age limit of every input by name, for the watchdog: `camera/<name>`, `joint_states` and `chunk`."""
        cameras = {f"camera/{camera.name}": camera.max_age_s for camera in self.cameras}
        return {**cameras, "joint_states": self.joint_states.max_age_s, "chunk": self.chunk.max_age_s}

    def to_policy(self, positions: np.ndarray) -> np.ndarray:
        """ROS joint positions [..., D] in the policy's units, float64 [..., D]."""
        return np.asarray(positions, dtype=np.float64) * self._scale() + self._offset()

    def to_robot(self, actions: np.ndarray) -> np.ndarray:
        """The policy's absolute joint targets [..., D] as ROS joint positions, float64 [..., D]."""
        return (np.asarray(actions, dtype=np.float64) - self._offset()) / self._scale()

    def _scale(self) -> np.ndarray:
        return np.array([joint.scale for joint in self.joints])

    def _offset(self) -> np.ndarray:
        return np.array([joint.offset for joint in self.joints])


def _stream(fields: Fields) -> dict:
    topic = fields.text("topic", _TOPIC, _TOPIC_FORM)
    rate_hz = fields.number("rate_hz", above=0.0)
    max_age_s = fields.number("max_age_s", above=0.0)
    if max_age_s <= 1.0 / rate_hz:
        fields.refuse("max_age_s", max_age_s, f"is not longer than one period at {rate_hz:g} Hz", "raise it")
    return {"topic": topic, "rate_hz": rate_hz, "max_age_s": max_age_s}


def _camera(name: str, fields: Fields) -> Camera:
    camera = Camera(**_stream(fields), name=name, image=fields.text("image", _NAME, _NAME_FORM))
    fields.close()
    return camera


def _joint(fields: Fields) -> Joint:
    joint = Joint(
        name=fields.text("name"),
        lower=fields.number("lower"),
        upper=fields.number("upper"),
        velocity=fields.number("velocity", above=0.0),
        acceleration=fields.number("acceleration", above=0.0),
        action=fields.choice("action", ("delta", "absolute")),
        unit=fields.choice("unit", tuple(_UNITS), "rad"),
        sign=fields.choice("sign", (1, -1), 1),
        offset=fields.number("offset", default=0.0),
    )
    if joint.lower >= joint.upper:
        fields.refuse("lower", joint.lower, f"is not below upper = {joint.upper:g}", "swap or mend them")
    fields.close()
    return joint


def _controller(fields: Fields) -> Controller:
    topic = fields.text("topic", _TOPIC, _TOPIC_FORM)
    controller = Controller(topic, fields.texts("joints", r"\S(.*\S)?", "a joint's name"))
    fields.close()
    return controller


def _check_names(
    file: Fields,
    cameras: tuple[Camera, ...],
    joint_states: Stream,
    joints: tuple[Joint, ...],
    controllers: tuple[Controller, ...],
) -> None:
    """What no field can say alone: nothing is there twice, and every joint has exactly one controller."""
    _unique(file, [(f"cameras.{c.name}.image", c.image) for c in cameras], "give every camera its own image")
    topics = [(f"cameras.{c.name}.topic", c.topic) for c in cameras]
    topics += [("joint_states.topic", joint_states.topic)]
    topics += [(f"controllers[{i}].topic", c.topic) for i, c in enumerate(controllers)]
    _unique(file, topics, "give every stream its own topic")
    _unique(file, [(f"joints[{i}].name", j.name) for i, j in enumerate(joints)], "name every joint once")
    moved = [
        (f"controllers[{i}].joints[{k}]", n)
        for i, c in enumerate(controllers)
        for k, n in enumerate(c.joints)
    ]
    _unique(file, moved, "give every joint one controller")
    known = {joint.name for joint in joints}
    for path, name in moved:
        if name not in known:
            file.refuse(path, name, "is not a joint of joints", "add it there or mend its spelling")
    for i, joint in enumerate(joints):
        if joint.name not in {name for _, name in moved}:
            file.refuse(
                f"joints[{i}].name", joint.name, "has no controller", "name it in controllers[].joints"
            )


def _unique(file: Fields, named: Iterable[tuple[str, str]], mend: str) -> None:
    first: dict[str, str] = {}
    for path, name in named:
        if name in first:
            file.refuse(path, name, f"is already {first[name]}", mend)
        first[name] = path
