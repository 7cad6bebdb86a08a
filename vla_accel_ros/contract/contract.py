"""The contract between a robot and a policy, one YAML file per robot.

It says which topic is which image of the policy, the order and units in which the policy counts the joints,
the robot's limits, which controller moves which joint, and how old each input may be. Nodes, sensing, control
and the simulator all read this one object, so nothing is configured twice. config/contracts/sim_arm.yaml is
the annotated example. Two systems of units meet here: ROS units (rad, m) on every topic and in every limit,
the policy's own in Observation.state and Chunk.actions. Only `to_policy` and `to_robot` convert between them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike

from vla_accel_ros.contract.consistency import check_home, check_led, check_names, check_twist
from vla_accel_ros.contract.files import urdf
from vla_accel_ros.contract.files.fields import Fields
from vla_accel_ros.contract.parts import (
    LONGEST_AGE_S,
    NAME,
    NAME_FORM,
    Base,
    Camera,
    ChunkTiming,
    Controller,
    Joint,
    Stream,
    Teleop,
    Twist,
)
from vla_accel_ros.contract.sections import readers
from vla_accel_ros.contract.sections.base import read_base
from vla_accel_ros.contract.sections.force import check_force, read_force
from vla_accel_ros.contract.sections.hands import Columns, make_arms, pose_of, read_collisions, read_hands
from vla_accel_ros.contract.sections.keys import Keys, read_keys
from vla_accel_ros.contract.sections.teleop import read_teleop
from vla_accel_ros.control.contract import LEADS
from vla_accel_ros.control.force.guard import Force
from vla_accel_ros.control.kinematics.arm import Arm
from vla_accel_ros.control.kinematics.collisions import Collisions
from vla_accel_ros.control.kinematics.hand import Hand, Tf
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
    what a person commands the arm by, or None. base: a mobile one, or None.
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
    base: Base | None = None

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
        states = readers.read_stream(file.child("joint_states"))
        hands = read_hands(file, states.max_age_s) if actions == "hands" else ()
        if hands and limits.file is None:
            file.missing("urdf", "add it: hands need the robot's description")
        contract = cls(
            robot=file.text("robot", NAME, NAME_FORM),
            cameras=tuple(
                readers.read_camera(name, fields) for name, fields in file.named("cameras", NAME, NAME_FORM)
            ),
            max_skew_s=file.number("max_skew_s", above=0.0, most=LONGEST_AGE_S),
            joint_states=states,
            joints=tuple(readers.read_joint(fields, limits, actions) for fields in file.children("joints")),
            controllers=tuple(readers.read_controller(fields) for fields in file.children("controllers")),
            chunk=readers.read_chunk(file.child("chunk")),
            home=file.named_numbers("home") if file.has("home") else {},
            urdf=limits.file,
            actions=actions,
            twist=readers.read_twist(file.child("twist")) if actions == "twist" else None,
            force=read_force(file.child("force")) if file.has("force") else None,
            base=read_base(file.child("base")) if file.has("base") else None,
            actions_given=file.contains("actions"),
        )
        contract = replace(
            contract,
            keys=read_keys(file, [picture.image for picture in contract.pictures]),
            collisions=read_collisions(file, limits, contract.joints, contract.home),
        )
        if file.has("teleop"):
            teleop = file.child("teleop")
            twists = contract.twist is not None
            contract = replace(contract, teleop=read_teleop(teleop, contract.joints, limits.text, twists))
        file.close()
        check_names(file, contract)
        check_twist(file, contract)
        check_home(file, contract)
        contract = replace(contract, hands=make_arms(file, hands, limits.text, contract.joints))
        check_led(file, contract)
        if contract.force is not None:
            force = check_force(file, contract.force, contract.joints, bool(contract.led_joints))
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
    def pictures(self) -> tuple[Camera, ...]:
        """The cameras, then each earlier frame of one, named for its image."""
        earlier = (
            replace(camera, name=image, image=image, history=())
            for camera in self.cameras
            for image, _ in camera.history
        )
        return (*self.cameras, *earlier)

    @property
    def joint_names(self) -> tuple[str, ...]:
        """Names in the policy's order, the order of every [D] array of states."""
        return tuple(joint.name for joint in self.joints)

    @property
    def observed(self) -> tuple[Joint, ...]:
        """The joints, and the speeds of a base that has odometry: what `to_policy` takes."""
        return self.joints + (self.base.axes if self.base is not None and self.base.odometry else ())

    @property
    def commanded(self) -> tuple[Controller, ...]:
        """The controllers of the joints, and that of the base."""
        return self.controllers + (() if self.base is None else (self.base.controller,))

    @property
    def action_joints(self) -> tuple[Joint, ...]:
        """The joints that have a target in a row of a chunk, in the policy's order; all of them unless a hand
        is led by velocities."""
        return tuple(joint for joint in self.joints if joint.name not in self.led_joints)

    @property
    def led_joints(self) -> frozenset[str]:
        """The joints that MoveIt Servo moves where it is told to lead the hand."""
        return frozenset(name for c in self.controllers if c.kind in LEADS for name in c.joints)

    @property
    def action_names(self) -> tuple[str, ...]:
        """Names of the columns of a chunk [A]: for twist actions those of TWIST first, then joints; those of
        a hand in place of its joints; those of a base last."""
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
        hands = [(hand, arm) for hand, arm in self.hands if not set(arm.joints) <= self.led_joints]
        led = next((each for each in self.hands if each not in hands), None)
        return Layout(
            hands, self.action_names, joints, speeds, 0 if self.base is None else len(self.base.axes), led
        )

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
    def tf(self) -> dict[str, Tf]:
        """The poses by tf, by their streams."""
        return {hand.stream: hand.tf for hand, _ in self.hands if hand.tf is not None}

    @property
    def max_ages_s(self) -> dict[str, float]:
        """Age limit of every input by name, for the watchdog: `camera/<name>`, `tf/<hand>`, `joint_states`,
        `chunk` and, of a person who takes over, `teleop` and `deadman`."""
        ages = {f"camera/{camera.name}": camera.max_age_s for camera in self.cameras}
        ages |= {stream: tf.max_age_s for stream, tf in self.tf.items()}
        ages |= {"joint_states": self.joint_states.max_age_s, "chunk": self.chunk.max_age_s}
        if self.teleop is not None:
            ages |= dict.fromkeys(("teleop", "deadman"), self.teleop.max_age_s)
        return ages

    def to_policy(
        self, positions: ArrayLike, poses: Mapping[str, np.ndarray] = MappingProxyType({})
    ) -> np.ndarray:
        """What is observed, [..., O] in ROS units, as the policy's state, float64 [..., S]. poses: x to qw by
        tf, by their streams; hands that are not in it are where the joints are."""
        scale, offset = self._state_units
        values = np.asarray(positions, dtype=np.float64)
        return self._columns.state(values, values * scale + offset, poses)

    def to_robot(self, actions: ArrayLike) -> np.ndarray:
        """The policy's rows [..., A] in ROS units, float64 [..., A]: positions of joints, and their
        velocities where those are the policy's actions.

        The columns of a twist are in ROS units already, and those of a hand are for Rows: they do not change.
        Those of a base become velocities.
        """
        scale, offset = self._action_units
        return (np.asarray(actions, dtype=np.float64) - offset) / scale

    def to_row(
        self,
        targets: np.ndarray,
        measured: np.ndarray,
        before: np.ndarray,
        step_s: float,
        poses: Mapping[str, np.ndarray] = MappingProxyType({}),
    ) -> np.ndarray:
        """The policy's row, float64 [A], that asks for these targets of joints, and speeds of a base, [D + B]
        a step later, the inverse of `to_robot` and kinematics.rows. measured, before: where joints are, and
        are commanded to be; poses: as in `to_policy`. What is relative to a chunk's observation is absolute
        here. Not for twists."""
        numbers = dict(zip(self.joint_names, targets))
        for i, joint in enumerate(self.joints):
            if joint.action == "velocity":
                numbers[joint.name] = (targets[i] - before[i]) / step_s
        for hand, arm in self.hands:
            begin = (before if hand.relative_to == "commanded" else measured)[arm.columns]
            seen = pose_of(poses[hand.stream]) if hand.stream in poses else None
            row = hand.row(arm.pose(targets[arm.columns]), arm.pose(begin), seen)
            numbers |= zip(hand.columns, row)
        if self.base is not None:
            numbers |= zip(self.base.names, targets[len(self.joints) :])
        scale, offset = self._action_units
        return np.array([numbers[name] for name in self.action_names]) * scale + offset

    @cached_property
    def _columns(self) -> Columns:
        twist = TWIST if self.actions == "twist" else ()
        base = () if self.base is None else self.base.axes
        return Columns(self.hands, self.observed, self.action_joints, twist, base)

    @cached_property
    def _state_units(self) -> tuple[np.ndarray, np.ndarray]:
        """Scale and offset of what is observed, [O] each."""
        scales = np.array([joint.scale for joint in self.observed])
        return scales, np.array([joint.offset for joint in self.observed])

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
