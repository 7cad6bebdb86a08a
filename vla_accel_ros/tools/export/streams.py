"""Reads one robot's streams from a bag: joints, poses by tf, a base's speeds, commands, instruction and
whether the robot was held as functions of time, and the stamps of its images.

Everything but the pixels is held in memory. Joints and images are sorted by their stamps, each joint by its
own, so that one with a wrong stamp hides no others; joints that the nodes would not believe (without a stamp,
or stamped ahead of their arrival) are left out and named. A continuous joint is interpolated the short way
round, and given in the turn that its driver reports. A command is sampled as a joint_trajectory_controller
would: from the newest trajectory that had arrived at the requested time.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np

from vla_accel_ros.contract.checks.graph_check import ODOMETRY_TYPE, TF_STATIC, TF_TYPE
from vla_accel_ros.contract.contract import Contract, Controller
from vla_accel_ros.contract.parts import FURTHEST
from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.engine.session import Session
from vla_accel_ros.extensions import BASES
from vla_accel_ros.recording.jumps import Part, numbered
from vla_accel_ros.recording.marks import TOPIC as EPISODE
from vla_accel_ros.recording.marks import Marks
from vla_accel_ros.recording.reader import Entry
from vla_accel_ros.recording.robots import SESSION, chosen_robot, contract_of, topic_of
from vla_accel_ros.sensing.transforms import POSE, HandPoses, transforms_of
from vla_accel_ros.tools.bags import (
    COMPRESSED,
    IMAGE,
    JOINTS,
    MOTION,
    OBSERVED,
    POSITIONS,
    STRING,
    TRAJECTORY,
    check_readable,
    image_stamp_ns,
    image_topic,
    stamp_ns,
    trajectory_of,
)
from vla_accel_ros.tools.export.series import Joint, Timed, values_at

SUBTASK = "subtask"
HELD, HUMAN, ALIGNING = (2, 3), (5,), (6,)
"""Of the trajectory node's report, the states in which chunks stop for a reason (stopping and holding), a
person commands the arm, and the arm goes to the person's leader arm."""
_STAMP_END = 12
"""Where an image's stamp ends, after the encapsulation; what follows equals if the picture does."""
_COMMANDS = {"joint_trajectory": TRAJECTORY, "forward_command": POSITIONS} | dict.fromkeys(
    ("gripper_command", "parallel_gripper"), POSITIONS
)
_COMMANDS |= {kind: base.message for kind, base in BASES.items()}


class Streams:
    """The streams of one part of a bag. `task`, if given, replaces the recorded instructions. `robot` is the
    namespace of one of the bag's robots, "/" for none; it may be empty if there is only one.

    A recorder that starts late misses the first instruction message. Until the first one in the bag, the
    instruction is the one that the Observed messages carry.

    Attributes: `contract`; `images`: camera -> its sorted stamps in nanoseconds; `topics`: camera -> its
    image topic; `misstamped`: joint -> how many of its states were left out for their stamp; `unreadable`, a
    sentence about each message that cannot be read, which the nodes refused,
    too; `extent_ns`: when its first and last message were recorded; `marked`: whether a person marked
    episodes, and `episodes`: those; `repeated`, `late`:
    camera -> stamps of images that equal the one before in every byte, or came older than the contract
    allows; `lacking`: see `poses`. Raises ValueError if the bag has no session message of that robot, or
    several robots and none is given, and where the bag does not fit the contract.
    """

    def __init__(self, part: Part, task: str = "", robot: str = "") -> None:
        self.part, self.bag = part, part.bag
        bag = part.bag
        bag.survey()
        self._namespace = chosen_robot(bag, robot)
        sessions = (e for e in bag.entries((SESSION,)) if e.topic.rpartition("/")[0] == self._namespace)
        entry = next(sessions, None)
        if entry is None:
            raise ValueError(
                f"{bag.path} has no message of the robot's session: record with the node recorder"
            )
        session = Session.from_message(bag.decode(entry))
        self.contract: Contract = contract_of(session)
        recorded = dict(zip(session.cameras, session.topics))
        self.topics = {
            camera.name: image_topic(bag, recorded.get(camera.name, "")) for camera in self.contract.cameras
        }
        self.images: dict[str, list[int]] = {camera: [] for camera in self.topics}
        self.repeated: dict[str, list[int]] = {camera: [] for camera in self.topics}
        self.late: dict[str, list[int]] = {camera: [] for camera in self.topics}
        self._digests: dict[str, int] = {}
        self._max_age_ns = {camera.name: camera.max_age_s * 1e9 for camera in self.contract.cameras}
        self._joints = {joint.name: Joint() for joint in self.contract.observed}
        self._tf = {stream: HandPoses({stream: tf}, 2, 0.0) for stream, tf in self.contract.tf.items()}
        self._poses = {stream: [Joint() for _ in POSE] for stream in self._tf}
        self._problems, self.lacking = dict.fromkeys(self._tf, ""), dict[str, str]()
        self._ahead_ns = round(self.contract.joint_states.max_age_s * 1e9)
        self.misstamped: Counter[str] = Counter()
        self._turning = {joint.name for joint in self.contract.joints if joint.continuous}
        self._told, self._observed, self._motion, self._subtask = Timed(), Timed(), Timed(), Timed()
        self.unreadable: list[str] = []
        self._commands = {controller.topic: Timed() for controller in self.contract.commanded}
        self._marks, self.extent_ns = Marks(), (0, 0)
        self.marked = f"{self._namespace}/{EPISODE}" in bag.topics
        self._read()
        self.episodes = [replace(episode, task="") if task else episode for episode in self._marks.episodes]
        for camera, stamps in self.images.items():
            self.images[camera] = sorted(set(stamps))
        for joint in (*self._joints.values(), *chain(*self._poses.values())):
            joint.sort()
        if task:
            self._told = Timed([0], [task])
        else:
            self._tell()

    def span_ns(self, commanded: bool) -> tuple[int, int]:
        """Return the first and last time, in nanoseconds, at which every stream has a value.

        Raises ValueError if a stream is empty.
        """
        streams: dict[str, Sequence[int]] = {
            f"images of camera {camera}": stamps for camera, stamps in self.images.items()
        }
        streams |= {f"states of joint {name}": joint.times_ns for name, joint in self._joints.items()}
        streams |= {
            f"pose by tf ({problem or stream})": self._poses[stream][0].times_ns
            for stream, problem in self._problems.items()
        }
        beginnings = {"instruction": self._told.times_ns or [e.begin_ns for e in self.episodes if e.task]}
        if commanded:
            beginnings |= {f"commands on {topic}": timed.times_ns for topic, timed in self._commands.items()}
        for name, times in {**streams, **beginnings}.items():
            if not len(times):
                options = {"instruction": "--task TEXT", "commands": "--actions measured"}
                fix = next((f": give {option}" for stream, option in options.items() if stream in name), "")
                raise ValueError(f"{self.bag.path} has no {name}{fix}")
        first = max(times[0] for times in (*streams.values(), *beginnings.values()))
        return first, min(times[-1] for times in streams.values())

    def joints(self, times_ns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return what is observed of joints and a base, [N, O] float64 in ROS units, interpolated linearly,
        and seconds [N] to the nearest sample, for the joint where that is longest."""
        return values_at(self._joints.values(), times_ns, [name in self._turning for name in self._joints])

    def poses(self, times_ns: np.ndarray) -> tuple[list[dict[str, np.ndarray]], np.ndarray]:
        """Return the hands' poses by tf at each time, as `to_policy` takes them, and whether, bool [N], each
        is known there; `lacking` has a sentence about each that is not."""
        poses, recent = {}, np.ones(len(times_ns), bool)
        for stream, tf in self.contract.tf.items():
            poses[stream], gaps_s = values_at(self._poses[stream], times_ns)
            absent = gaps_s > tf.max_age_s
            recent &= ~absent
            if absent.any():
                problem = self._problems[stream] or f"{stream}: frame {tf.tip} was silent"
                self.lacking[stream] = (
                    f"{absent.sum()} frames are left out, up to {gaps_s.max():.2f} s from a pose of {tf.tip} "
                    f"in {tf.base}, the limit is {tf.max_age_s:g} s; {problem}"
                )
        return [{stream: x[i] for stream, x in poses.items()} for i in range(len(times_ns))], recent

    def samples(self, joint: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the stamps [N] int64 of a joint's states, in nanoseconds, and its positions [N] float64."""
        return np.array(self._joints[joint].times_ns, np.int64), np.array(self._joints[joint].positions)

    def commanded(self, times_ns: np.ndarray) -> np.ndarray:
        """Return the commanded positions of joints, and speeds of a base, [N, D + B] float64 in ROS units;
        nan before the first command, and where a base has stopped for want of one."""
        base = self.contract.base
        axes, timeout_s = ((), np.inf) if base is None else (base.names, base.timeout_s)
        columns = {name: column for column, name in enumerate((*self.contract.joint_names, *axes))}
        out = np.full((len(times_ns), len(columns)), np.nan)
        for controller in self.contract.commanded:
            places = [columns[name] for name in controller.joints or axes]
            timed = self._commands[controller.topic]
            longest_ns = np.inf if controller.joints else timeout_s * 1e9
            for row, which in enumerate(timed.newest(times_ns)):
                if which >= 0 and times_ns[row] - timed.times_ns[which] <= longest_ns:
                    command = timed.things[which]
                    whole = isinstance(command, Trajectory)
                    out[row, places] = command.sample(int(times_ns[row]))[0] if whole else command
        return out

    def tasks(self, times_ns: np.ndarray) -> list[str]:
        """Return the task of the episode at each time, or else the instruction, "" before the first."""
        instructions = [
            self._told.things[which] if which >= 0 else "" for which in self._told.newest(times_ns)
        ]
        numbers = self.numbers(times_ns).tolist()
        marked = [self.episodes[number].task if number >= 0 else "" for number in numbers]
        return [task or instruction for task, instruction in zip(marked, instructions)]

    def subtasks(self, times_ns: np.ndarray) -> list[str]:
        """Return the subtask that is acted on at each time, "" where the task itself is."""
        texts = [*self._subtask.things, ""]
        return [texts[which] for which in self._subtask.newest(times_ns)]

    def numbers(self, times_ns: np.ndarray) -> np.ndarray:
        """Return the index [N] of the marked episode at each time, -1 outside of all."""
        newest = np.searchsorted([e.begin_ns for e in self.episodes], times_ns, side="right") - 1
        ends_ns = np.array([*(e.end_ns for e in self.episodes), 0])  # before all the newest is -1: the 0
        return np.where(times_ns <= ends_ns[newest], newest, -1)

    def held(self, times_ns: np.ndarray) -> np.ndarray:
        """Return at which times, bool [N], the trajectory node stopped or held the robot; as it last told."""
        return self.reported(times_ns, HELD)

    def reported(self, times_ns: np.ndarray, wanted: Sequence[int]) -> np.ndarray:
        """Return at which times, bool [N], the trajectory node had last told one of these states."""
        states = np.array([*self._motion.things, 0])  # before the first it told nothing
        return np.isin(states[self._motion.newest(times_ns)], wanted)

    def _read(self) -> None:
        take: dict[str, Callable[[Entry], None]] = {
            self._topic(c.topic, _COMMANDS[c.kind]): partial(self._read_command, c)
            for c in self.contract.commanded
            if c.kind in _COMMANDS
        }
        take |= {topic: partial(self._read_image, camera) for camera, topic in self.topics.items()}
        take[self._topic(self.contract.joint_states.topic, JOINTS)] = self._read_joints
        if self.contract.base is not None and self.contract.base.odometry:
            take[self._topic(self.contract.base.odometry, ODOMETRY_TYPE)] = self._read_odometry
        if self._tf:
            take |= dict.fromkeys(("/tf", TF_STATIC), self._read_transforms)
            for number, _, entry in numbered(self.bag):  # what is static is sent once, and outlives a jump
                if number == self.part.number:
                    break
                if entry.topic == TF_STATIC:
                    self._read_transforms(entry)
        take[f"{self._namespace}/instruction"] = partial(self._read_text, self._told)
        take[f"{self._namespace}/{SUBTASK}"] = partial(self._read_text, self._subtask)
        take[f"{self._namespace}/{EPISODE}"] = self._read_mark
        take[f"{self._namespace}/observed"] = partial(self._read_stamped, self._observed, "instruction")
        take[f"{self._namespace}/motion"] = partial(self._read_stamped, self._motion, "state")
        for entry in self.part.entries(
            (
                *(IMAGE, COMPRESSED, JOINTS, ODOMETRY_TYPE, TF_TYPE),
                *(STRING, OBSERVED, MOTION, *_COMMANDS.values()),
            )
        ):
            if entry.topic in take:
                self.extent_ns = self.extent_ns[0] or entry.log_ns, entry.log_ns
                try:
                    take[entry.topic](entry)
                except ValueError as error:
                    self.unreadable.append(f"{entry.topic}: {error}")

    def _tell(self) -> None:
        """Put the instructions of the Observed messages before the first recorded instruction."""
        heard, spoken = self._told, Timed()
        for time_ns, words in zip(self._observed.times_ns, self._observed.things):
            if heard.times_ns and time_ns >= heard.times_ns[0]:
                break
            if not spoken.things or words != spoken.things[-1]:
                spoken.add(time_ns, words)
        self._told = Timed(spoken.times_ns + heard.times_ns, spoken.things + heard.things)

    def _read_image(self, camera: str, entry: Entry) -> None:
        check_readable(entry)  # what cannot be decoded must not be planned for
        stamp = image_stamp_ns(entry)
        if not self.part.has(stamp, entry.log_ns):
            return
        self.images[camera].append(stamp)
        digest = zlib.crc32(memoryview(entry.data)[_STAMP_END:])
        if self._digests.get(camera) == digest:
            self.repeated[camera].append(stamp)
        self._digests[camera] = digest
        if entry.log_ns - stamp > self._max_age_ns[camera]:
            self.late[camera].append(stamp)

    def _read_joints(self, entry: Entry) -> None:
        message = self.bag.decode(entry)
        self._add(stamp_ns(message.header.stamp), entry, zip(message.name, message.position))

    def _read_odometry(self, entry: Entry) -> None:
        message, base = self.bag.decode(entry), self.contract.base
        assert base is not None
        speeds = base.velocities(message.twist.twist)
        self._add(stamp_ns(message.header.stamp), entry, zip(base.names, speeds))

    def _add(self, stamp: int, entry: Entry, values: Iterable[tuple[str, float]]) -> None:
        if not self.part.has(stamp, entry.log_ns):
            return
        misstamped = not stamp or stamp - entry.log_ns > self._ahead_ns
        for name, position in values:
            if name in self._joints and misstamped:
                self.misstamped[name] += 1
            elif name in self._joints and abs(position) <= FURTHEST:
                self._joints[name].times_ns.append(stamp)
                self._joints[name].positions.append(position)

    def _read_transforms(self, entry: Entry) -> None:
        transforms = transforms_of(self.bag.decode(entry))
        for stream, poses in self._tf.items():
            stamps_ns = poses.take(transforms, entry.topic == TF_STATIC, entry.log_ns)
            self._problems[stream] = poses.problem(stream, entry.log_ns) or self._problems[stream]
            if stream not in stamps_ns or not self.part.has(stamps_ns[stream], entry.log_ns):
                continue
            if not self._poses[stream][0].times_ns:
                self._problems[stream] = ""  # until the first there is always one
            for joint, number in zip(self._poses[stream], poses.at(stamps_ns[stream])[stream]):
                joint.times_ns.append(stamps_ns[stream])
                joint.positions.append(number)

    def _read_text(self, timed: Timed, entry: Entry) -> None:
        timed.add(entry.log_ns, self.bag.decode(entry).data)

    def _read_mark(self, entry: Entry) -> None:
        self._marks.read(self.bag.decode(entry).data, entry.log_ns)

    def _read_stamped(self, timed: Timed, field: str, entry: Entry) -> None:
        message = self.bag.decode(entry)
        stamp = stamp_ns(message.header.stamp)
        if self.part.has(stamp, entry.log_ns):
            timed.add(stamp, getattr(message, field))

    def _read_command(self, controller: Controller, entry: Entry) -> None:
        message = self.bag.decode(entry)
        command: Trajectory | np.ndarray
        if controller.kind in BASES:
            assert self.contract.base is not None
            command = np.array(self.contract.base.velocities(getattr(message, "twist", message)))
            if not (np.abs(command) <= FURTHEST).all():
                raise ValueError(f"a base is sent {command.tolist()}")
        elif _COMMANDS[controller.kind] == POSITIONS:
            command = np.array(message.data)
            if len(command) != len(controller.joints) or not (np.abs(command) <= FURTHEST).all():
                raise ValueError(f"a command is not {len(controller.joints)} positions of joints")
        else:
            command = trajectory_of(message, entry.log_ns).select(controller.joints)
        self._commands[controller.topic].add(entry.log_ns, command)

    def _topic(self, name: str, kind: str) -> str:
        return topic_of(self.bag, self._namespace, name, kind)
