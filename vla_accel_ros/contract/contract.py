"""The contract between a robot and a policy, one YAML file per robot.

It says which topic is which image of the policy, the order and units in which the policy counts the joints,
the robot's limits, which controller moves which joint, and how old each input may be. Nodes, sensing, control
and the simulator all read this one object, so nothing is configured twice. config/contracts/sim_arm.yaml is
the annotated example. Two systems of units meet here: ROS units (rad, m) on every topic and in every limit,
the policy's own in Observation.state and Chunk.actions. Only `to_policy` and `to_robot` convert between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from vla_accel_ros.contract import readers, urdf
from vla_accel_ros.contract.fields import Fields, closest
from vla_accel_ros.contract.force import check_force, read_force
from vla_accel_ros.contract.hands import Columns, make_arms, read_collisions, read_hands
from vla_accel_ros.contract.keys import Keys, read_keys
from vla_accel_ros.contract.parts import (
    LONGEST_AGE_S,
    NAME,
    NAME_FORM,
    Camera,
    ChunkTiming,
    Controller,
    Joint,
    Stream,
    Teleop,
    Twist,
)
from vla_accel_ros.contract.teleop import read_teleop
from vla_accel_ros.control.force.guard import Force
from vla_accel_ros.control.kinematics.arm import Arm
from vla_accel_ros.control.kinematics.collisions import Collisions
from vla_accel_ros.control.kinematics.hand import Hand
from vla_accel_ros.control.kinematics.rows import Layout
from vla_accel_ros.control.limits.joint_limits import TURN

__all__ = ["TWIST", "Camera", "ChunkTiming", "Contract", "Controller", "Joint", "Stream", "Twist"]

# The first six columns of a twist action.
TWIST = ("linear.x", "linear.y", "linear.z", "angular.x", "angular.y", "angular.z")


@dataclass(frozen=True)
class Contract:
    """Everything that a policy and a robot must agree on; see the module docstring.

    home: joint -> position in ROS units, for all joints of a controller or for none. urdf: the file that the
    limits came from. actions: what a row of a chunk is: `joints` (a target or velocity for each), `hands`
    (poses in place of the joints of each of `hands`, which are with their arms) or `twist` (six numbers for
    the hand, interpreted by `twist`, then a target for each joint that no servo_twist moves). actions_given:
    whether the file says so, which it must if the model's statistics leave it open. force: force sensors and
    the arm's reaction to them, None without. keys: of a policy server's requests. teleop:
    what a person commands the arm by, or None.
    """

    robot: str
    cameras: tuple[Camera, ...]
    max_skew_s: float
    joint_states: Stream
    joints: tuple[Joint, ...]
    controllers: tuple[Controller, ...]
    chunk: ChunkTiming
    home: Mapping[str, float] = field(default_factory=dict)
    urdf: Path | None = None
    actions: str = "joints"
    twist: Twist | None = None
    force: Force | None = None
    teleop: Teleop | None = None
    actions_given: bool = False
    keys: Keys = field(default_factory=lambda: Keys({}))
    hands: tuple[tuple[Hand, Arm], ...] = ()
    collisions: Collisions | None = None

    @classmethod
    def load(cls, path: str | Path) -> Contract:
        """Read and check a contract file.

        Raises ValueError with all mistakes at once, each a sentence with the field's path, its value and the
        fix; OSError if the file, or the URDF that it names, cannot be read.
        """
        folder = Path(path).parent

        def read(name: str) -> readers.RobotLimits:
            joints = urdf.read(folder / name)
            return readers.RobotLimits(folder / name, joints, text=(folder / name).read_text("utf-8"))

        return cls._of(Fields.load(path), read)

    @classmethod
    def parse(cls, text: str, urdf_text: str, file: str) -> Contract:
        """Check the text of a contract; no file is read. urdf_text: that of the URDF that it names. file:
        names it in errors. Raises ValueError as `load` does."""

        def read(name: str) -> readers.RobotLimits:
            if not urdf_text:
                raise ValueError(f"{file}: it names a URDF; send its text beside it")
            beside = Path(f"the URDF beside {file}")
            return readers.RobotLimits(beside, urdf.parse(urdf_text.encode(), beside), text=urdf_text)

        return replace(cls._of(Fields.parse(text.encode(), file), read), urdf=None)

    @classmethod
    def _of(cls, file: Fields, read: Callable[[str], readers.RobotLimits]) -> Contract:
        """Check a contract. read: the limits in the URDF of this name."""
        actions = file.choice("actions", ("joints", "hands", "twist"), "joints")
        limits = _limits(file, read)
        hands = read_hands(file) if actions == "hands" else ()
        if hands and limits.file is None:
            file.missing("urdf", "add it: hands need the robot's description")
        contract = cls(
            robot=file.text("robot", NAME, NAME_FORM),
            cameras=tuple(
                readers.read_camera(name, fields) for name, fields in file.named("cameras", NAME, NAME_FORM)
            ),
            max_skew_s=file.number("max_skew_s", above=0.0, most=LONGEST_AGE_S),
            joint_states=readers.read_stream(file.child("joint_states")),
            joints=tuple(readers.read_joint(fields, limits, actions) for fields in file.children("joints")),
            controllers=tuple(readers.read_controller(fields) for fields in file.children("controllers")),
            chunk=readers.read_chunk(file.child("chunk")),
            home=file.named_numbers("home") if file.has("home") else {},
            urdf=limits.file,
            actions=actions,
            twist=readers.read_twist(file.child("twist")) if actions == "twist" else None,
            force=read_force(file.child("force")) if file.has("force") else None,
            actions_given=file.contains("actions"),
        )
        contract = replace(
            contract,
            keys=read_keys(file, [camera.image for camera in contract.cameras]),
            collisions=read_collisions(file, limits, contract.joints, contract.home),
        )
        if file.has("teleop"):
            teleop = file.child("teleop")
            twists = contract.twist is not None
            contract = replace(contract, teleop=read_teleop(teleop, contract.joints, limits.text, twists))
        file.close()
        _check_names(file, contract)
        _check_twist(file, contract)
        _check_home(file, contract)
        contract = replace(contract, hands=make_arms(file, hands, limits.text, contract.joints))
        if contract.force is not None:
            force = check_force(file, contract.force, contract.joints, actions == "twist")
            contract = replace(contract, force=force)
        file.finish()
        return contract

    def eased(self, kind: str, speed: float, acceleration: float) -> Contract:
        """A copy in which joints moved by controllers of this kind, and hands, get shares of their limits."""
        moved = {name for c in self.controllers if c.kind == kind for name in c.joints}
        joints = tuple(
            replace(joint, velocity=speed * joint.velocity, acceleration=acceleration * joint.acceleration)
            if joint.name in moved
            else joint
            for joint in self.joints
        )
        return replace(self, joints=joints, hands=tuple((h.eased(speed), arm) for h, arm in self.hands))

    @property
    def joint_names(self) -> tuple[str, ...]:
        """Names in the policy's order, the order of every [D] array of states."""
        return tuple(joint.name for joint in self.joints)

    @property
    def action_joints(self) -> tuple[Joint, ...]:
        """The joints that have a target in a row of a chunk, in the policy's order; all of them unless
        actions are twists."""
        turned = {n for c in self.controllers if c.kind == "servo_twist" for n in c.joints}
        return tuple(joint for joint in self.joints if joint.name not in turned)

    @property
    def action_names(self) -> tuple[str, ...]:
        """Names of the columns of a chunk [A]: for twist actions those of TWIST first, then joints; those of
        a hand in place of its joints."""
        return tuple(name for name, _ in self._columns.rows)

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the numbers of a state [S]: the joints, or a hand's in place of its joints."""
        return self._columns.state_names

    @property
    def layout(self) -> Layout | None:
        """How rows become targets of joints; None if they are targets already."""
        speeds = frozenset(joint.name for joint in self.action_joints if joint.action == "velocity")
        if not (self.hands or speeds):
            return None
        joints = tuple(joint.name for joint in self.action_joints)
        return Layout(self.hands, self.action_names, joints, speeds)

    @property
    def delta_mask(self) -> np.ndarray:
        """bool [A], True where the policy's action is relative to the observed joint."""
        return np.array([j is not None and j.action == "delta" for _, j in self._columns.rows], dtype=bool)

    @property
    def turns(self) -> np.ndarray:
        """A whole turn of each column of a chunk, float64 [A] in the policy's units, where its action is
        relative to a continuous joint; 0 elsewhere."""
        turns = [0.0 if j is None else abs(j.scale) * TURN * j.continuous for _, j in self._columns.rows]
        return np.where(self.delta_mask, np.array(turns), 0.0)

    @property
    def max_ages_s(self) -> dict[str, float]:
        """Age limit of every input by name, for the watchdog: `camera/<name>`, `joint_states`, `chunk` and,
        of a person who takes over, `teleop` and `deadman`."""
        ages = {f"camera/{camera.name}": camera.max_age_s for camera in self.cameras}
        ages |= {"joint_states": self.joint_states.max_age_s, "chunk": self.chunk.max_age_s}
        if self.teleop is not None:
            ages |= dict.fromkeys(("teleop", "deadman"), self.teleop.max_age_s)
        return ages

    def to_policy(self, positions: ArrayLike) -> np.ndarray:
        """ROS joint positions [..., D] as the policy's state, float64 [..., S]."""
        scale, offset = self._state_units
        values = np.asarray(positions, dtype=np.float64)
        return self._columns.state(values, values * scale + offset)

    def to_robot(self, actions: ArrayLike) -> np.ndarray:
        """The policy's rows [..., A] in ROS units, float64 [..., A]: positions of joints, and their
        velocities where those are the policy's actions.

        The columns of a twist are in ROS units already, and those of a hand are for Rows: they do not change.
        """
        scale, offset = self._action_units
        return (np.asarray(actions, dtype=np.float64) - offset) / scale

    @cached_property
    def _columns(self) -> Columns:
        twist = TWIST if self.actions == "twist" else ()
        return Columns(self.hands, self.joints, self.action_joints, twist)

    @cached_property
    def _state_units(self) -> tuple[np.ndarray, np.ndarray]:
        """Scale and offset of the joints, [D] each."""
        scales = np.array([joint.scale for joint in self.joints])
        return scales, np.array([joint.offset for joint in self.joints])

    @cached_property
    def _action_units(self) -> tuple[np.ndarray, np.ndarray]:
        """Scale and offset of the columns of a chunk, [A] each."""
        scale, offset = np.array(
            [(1.0, 0.0) if j is None else j.action_units for _, j in self._columns.rows]
        ).T
        return scale, offset


def _limits(file: Fields, read: Callable[[str], readers.RobotLimits]) -> readers.RobotLimits:
    """Defaults for the joints' limits."""
    acceleration = file.optional("acceleration", above=0.0)
    if not file.has("urdf"):
        return readers.RobotLimits(None, {}, acceleration)
    name = file.text("urdf")
    if not file.valid("urdf"):
        file.finish()  # without it the joints' limits cannot be checked
    return replace(read(name), acceleration=acceleration)


def _check_names(file: Fields, contract: Contract) -> None:
    """Check what no single field can show: no name occurs twice, and every joint has exactly one controller.

    A name that could not be read is empty here, and is compared with nothing.
    """
    cameras, controllers, joints = contract.cameras, contract.controllers, contract.joints
    _unique(file, [(f"cameras.{c.name}.image", c.image) for c in cameras], "give every camera its own image")
    topics = [(f"cameras.{c.name}.topic", c.topic) for c in cameras]
    topics += [(f"cameras.{c.name}.info", c.info) for c in cameras if c.info]
    topics += [("joint_states.topic", contract.joint_states.topic)]
    if contract.teleop is not None:
        topics += [("teleop.topic", contract.teleop.topic)]
    topics += [(f"controllers[{i}].topic", c.topic) for i, c in enumerate(controllers)]
    topics += [(f"controllers[{i}].action", c.action) for i, c in enumerate(controllers) if c.action]
    _unique(file, topics, "give every stream its own topic")
    names = [(f"joints[{i}].name", joint.name) for i, joint in enumerate(joints)]
    once = _unique(file, names, "name every joint once")
    once &= all(file.valid(path) for path, _ in names)
    moved = [
        (f"controllers[{i}].joints[{k}]", n)
        for i, c in enumerate(controllers)
        for k, n in enumerate(c.joints)
    ]
    once &= _unique(file, moved, "give every joint one controller")
    declared, controlled = {joint.name for joint in joints}, {name for _, name in moved}
    read = all([joints, controllers, *(c.joints for c in controllers)]) and "" not in declared | controlled
    if not (read and once):  # a missing controller would only repeat the mistake above
        return
    for path, name in moved:
        if name not in declared:
            fix = closest(name, declared - controlled, "add it there or fix its spelling")
            file.refuse(path, name, "is not a joint of joints", fix)
    for path, name in names:
        if name not in controlled and controlled <= declared:
            file.refuse(path, name, "has no controller", "name it in controllers[].joints")


def _check_twist(file: Fields, contract: Contract) -> None:
    """Exactly one controller takes twists if the policy's actions are twists, and none otherwise."""
    if not (file.valid("actions") and file.valid("controllers")):
        return
    turning = [i for i, c in enumerate(contract.controllers) if c.kind == "servo_twist"]
    if contract.actions == "twist" and not turning:
        fix = "give one of controllers kind: servo_twist"
        file.refuse("actions", "twist", "has no controller that takes twists", fix)
    if contract.actions != "twist" and turning:
        problem, fix = "moves by twists, and actions are none", "write actions: twist, or kind: servo_joint"
        file.refuse(f"controllers[{turning[0]}].kind", "servo_twist", problem, fix)
    if len(turning) > 1:
        problem = "is there twice, but an action has one twist"
        file.refuse(f"controllers[{turning[1]}].kind", "servo_twist", problem, "keep one of them")


def _check_home(file: Fields, contract: Contract) -> None:
    """Home lies within the limits, and covers all joints of a controller or none of them."""
    if not (file.valid("home") and all(joint.name for joint in contract.joints)):
        return
    joints = {joint.name: joint for joint in contract.joints}
    for name, position in contract.home.items():
        if name not in joints:
            fix = closest(name, joints.keys() - contract.home.keys(), "fix its spelling")
            file.refuse(f"home.{name}", position, "is not a joint of joints", fix)
            continue
        lower, upper = joints[name].lower, joints[name].upper
        if position < lower or position > upper:
            problem = f"is not within its limits {lower:g} to {upper:g}"
            file.refuse(f"home.{name}", position, problem, "move it inside")
    for controller in contract.controllers:
        absent = [name for name in controller.joints if name not in contract.home]
        if absent and len(absent) < len(controller.joints) and file.valid("home"):
            file.missing(f"home.{absent[0]}", f"add it, since home names other joints of {controller.topic}")


def _unique(file: Fields, named: Iterable[tuple[str, str]], fix: str) -> bool:
    """Refuse names that occur twice; returns whether there were none."""
    first: dict[str, str] = {}
    once = True
    for path, name in named:
        if name in first:
            file.refuse(path, name, f"is already {first[name]}", fix)
            once = False
        elif name:
            first[name] = path
    return once
