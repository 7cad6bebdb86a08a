"""Converts between our types and messages, both ways, and nothing else.

Incoming messages are checked here once, because another process wrote them: a chunk whose shape does not fit
its own numbers raises ValueError with one sentence. Numbers in messages are in ROS units (rad, m), so a Chunk
made from a message is in ROS units too, while a Chunk from the engine is in the policy's.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
from builtin_interfaces.msg import Duration, Time
from geometry_msgs.msg import Twist, TwistStamped
from sensor_msgs.msg import JointState
from trajectory_msgs.msg import JointTrajectory

from vla_accel_msgs.msg import ActionChunk, FrameHandle, LanguageOutput, LoopStats, Motion, Observed
from vla_accel_msgs.msg import Inputs as InputsMessage
from vla_accel_msgs.msg import Session as SessionMessage
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.chunking.guidance import Execution
from vla_accel_ros.control.chunking.plausibility import received_chunk
from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.engine.session import Session
from vla_accel_ros.engine.streaming import loop
from vla_accel_ros.nodes.brief import brief
from vla_accel_ros.sensing.arrivals import Inputs
from vla_accel_ros.sensing.cameras.ring import Handle
from vla_accel_ros.types import Agreement, Chunk, Observation

if TYPE_CHECKING:
    from vla_accel_ros.engine.kv.prefixes import Prefix
    from vla_accel_ros.engine.streaming.ports import Text

MOTION = {
    "running": Motion.RUNNING,
    "stopping": Motion.STOPPING,
    "holding": Motion.HOLDING,
    "released": Motion.RELEASED,
    "human": 5,  # Motion.HUMAN; messages that were built before 0.3 do not name it
    "aligning": 6,
}
"""States of motion by name."""
LONGEST_LEAD_S = 60.0
"""Longest lead that a trajectory node may report."""


def stamp_ns(stamp: Time | Duration) -> int:
    """A message stamp, or a duration, in nanoseconds."""
    return stamp.sec * 1_000_000_000 + stamp.nanosec


def set_stamp(stamp: Time | Duration, t_ns: int) -> None:
    """Write nanoseconds into a message stamp, or a duration."""
    stamp.sec, stamp.nanosec = divmod(t_ns, 1_000_000_000)


def set_twist(twist: Twist, velocity: np.ndarray) -> None:
    """Write the linear and the angular velocity, float64 [6], into a message."""
    linear, angular = twist.linear, twist.angular
    linear.x, linear.y, linear.z, angular.x, angular.y, angular.z = velocity.tolist()


def twist_numbers(twist: Twist) -> tuple[float, ...]:
    """The six numbers of a twist."""
    linear, angular = twist.linear, twist.angular
    return (linear.x, linear.y, linear.z, angular.x, angular.y, angular.z)


def stamped(kind: type, t_ns: int, **values: object) -> Any:
    """A message of this kind with a header, stamped with nanoseconds."""
    message = kind(**values)
    set_stamp(message.header.stamp, t_ns)
    return message


def floats(values: object) -> array:
    """Numbers as a message has them, float32[]."""
    return array("f", np.asarray(values, dtype=np.float32).tobytes())


def handle_to_message(handle: Handle, frame_id: str) -> FrameHandle:
    """A frame's handle as a message; the other fields of both have the same names. frame_id: the camera's
    optical frame."""
    values = dict(vars(handle))
    message = stamped(FrameHandle, values.pop("stamp_ns"), **values)
    message.header.frame_id = frame_id
    return message


def handle_from_message(message: FrameHandle) -> Handle:
    """The Handle of a message; only its ring can tell whether the frame exists."""
    names = (field.name for field in fields(Handle) if field.name != "stamp_ns")
    values: Any = {name: getattr(message, name) for name in names}
    return Handle(stamp_ns=stamp_ns(message.header.stamp), **values)


def chunk_to_message(
    chunk: Chunk, contract: Contract, inference_s: float, actions: np.ndarray | None = None
) -> ActionChunk:
    """A Chunk in the policy's units as a message in ROS units. actions: the chunk's in ROS units, if already
    known."""
    actions = contract.to_robot(chunk.actions) if actions is None else actions
    message = stamped(ActionChunk, chunk.stamp_ns)
    message.joint_names = list(contract.action_names)
    message.horizon, message.action_dim = chunk.actions.shape
    message.execution_horizon = chunk.execution_horizon or 0
    message.actions = floats(actions)
    message.step_dt_s = float(chunk.step_dt_s)
    message.kv_version = chunk.kv_version
    message.request_id = chunk.request_id
    message.update_magnitudes = floats(chunk.update_magnitudes)
    message.inference_s = float(inference_s)
    if chunk.state is not None:
        message.state = floats(chunk.state)
    if chunk.step_states is not None:
        message.step_states = floats(chunk.step_states)
    if chunk.agreement is not None:
        _set_agreement(message, chunk.agreement)
    return message


def _set_agreement(message: ActionChunk, agreement: Agreement) -> None:
    message.agreement = agreement.method
    message.agreed_actions = floats(agreement.actions)
    message.agreed_delay, message.agreed_end = agreement.delay, agreement.end
    message.agreed_schedule, message.agreed_jacobian = agreement.schedule, agreement.jacobian
    message.agreed_max_weight, message.agreed_previous = agreement.max_weight, agreement.previous


def chunk_from_message(message: ActionChunk, joints: tuple[str, ...]) -> Chunk:
    """The Chunk of a message, in ROS units, its columns in the order of `joints`.

    Raises ValueError, in one sentence, if it is larger than check_chunk_size allows, its shape does not fit
    the numbers, a joint is missing, or an action is not finite.
    """
    return received_chunk(
        f"action_chunk {message.request_id}",
        joints,
        names=message.joint_names,
        actions=np.frombuffer(message.actions, dtype=np.float32),
        horizon=message.horizon,
        columns=message.action_dim,
        execution_horizon=message.execution_horizon,
        step_dt_s=message.step_dt_s,
        stamp_ns=stamp_ns(message.header.stamp),
        kv_version=message.kv_version,
        request_id=message.request_id,
        update_magnitudes=np.frombuffer(message.update_magnitudes, dtype=np.float32),
    )


def observed_to_message(
    prefix: Prefix, observation: Observation, contract: Contract, session: str
) -> Observed:
    """What a prefix was computed from. session: id of its engine's session."""
    stamps = observation.stamps_ns
    stamps_ns = {p.name: stamps[p.image] for p in contract.pictures if p.image in stamps}
    message = stamped(Observed, prefix.stamp_ns, session=session, kv_version=prefix.version)
    message.instruction, message.state = prefix.instruction, floats(prefix.state)
    message.cameras, message.stamps = list(stamps_ns), [_time(t_ns) for t_ns in stamps_ns.values()]
    return message


def _time(t_ns: int) -> Time:
    stamp = Time()
    set_stamp(stamp, t_ns)
    return stamp


def inputs_to_message(inputs: Inputs, streams: tuple[str, ...]) -> InputsMessage:
    """A report about inputs as a message. streams: all of them, in the order of the message."""
    return stamped(
        InputsMessage,
        inputs.told_ns,
        streams=list(streams),
        stamps=[_time(inputs.stamps_ns.get(stream, 0)) for stream in streams],
        problems=[brief(inputs.problems.get(stream, "")) for stream in streams],
        waiting_for=brief(inputs.waiting_for),
        chunks_per_s=inputs.chunks_per_s,
        chunks_per_s_needed=inputs.chunks_per_s_needed,
    )


def inputs_from_message(message: InputsMessage) -> Inputs:
    """The report about inputs in a message. Raises ValueError, in one sentence, if its lists differ in
    length."""
    lengths = {len(message.streams), len(message.stamps), len(message.problems)}
    if len(lengths) > 1:
        raise ValueError(
            f"inputs names {len(message.streams)} streams with {len(message.stamps)} stamps and "
            f"{len(message.problems)} problems: it must have one of each for every stream"
        )
    stamps = {name: stamp_ns(stamp) for name, stamp in zip(message.streams, message.stamps)}
    return Inputs(
        told_ns=stamp_ns(message.header.stamp),
        stamps_ns={name: stamp for name, stamp in stamps.items() if stamp},
        problems={stream: brief(p) for stream, p in zip(message.streams, message.problems) if p},
        waiting_for=brief(message.waiting_for),
        chunks_per_s=message.chunks_per_s,
        chunks_per_s_needed=message.chunks_per_s_needed,
    )


def session_to_message(session: Session, now_ns: int) -> SessionMessage:
    """A Session as a message; the fields of both have the same names."""
    values = {name: list(v) if isinstance(v, tuple) else v for name, v in vars(session).items()}
    return stamped(SessionMessage, now_ns, **values)


def text_to_message(text: Text) -> LanguageOutput:
    """An answer so far as a message."""
    return stamped(
        LanguageOutput,
        text.prefix.stamp_ns,
        kv_version=text.prefix.version,
        request_id=text.request_id,
        prompt=text.prefix.instruction,
        text=text.text,
        finished=text.finished,
    )


def refusal_to_message(question: str, reason: str, now_ns: int) -> LanguageOutput:
    """The answer to a question that is refused."""
    words = {"prompt": brief(question), "text": brief(reason)}
    return stamped(LanguageOutput, now_ns, **words, finished=True, refused=True)


def execution_from_message(message: Motion) -> Execution:
    """What a trajectory node reports about itself. A state of a later version counts as not running. Raises
    ValueError, in one sentence, if its lead is no duration."""
    if not 0.0 <= message.lead_s <= LONGEST_LEAD_S:
        raise ValueError(
            f"motion has lead_s {message.lead_s:g}: it must be at least 0 and at most {LONGEST_LEAD_S:g}"
        )
    words = {number: word for word, number in MOTION.items()}
    word = words.get(message.state, f"state {message.state}")
    return Execution(word, message.mode, message.lead_s, message.beginning)


def command_from_message(message: Any) -> tuple[Sequence[str], Sequence[float]]:
    """Names and numbers of a person's command: positions of a JointState, velocities of a JointJog, or the
    six of a TwistStamped, with the name of their frame."""
    if isinstance(message, JointState):
        return message.name, message.position
    if isinstance(message, TwistStamped):
        return (message.header.frame_id,), twist_numbers(message.twist)
    return message.joint_names, message.velocities


def loop_stats(stats: loop.LoopStats, now_ns: int) -> LoopStats:
    """The statistics of a loop as a message."""
    names = ("target_hz", "measured_hz", "p50_s", "p99_s", "runs", "idle", "misses")
    return stamped(LoopStats, now_ns, loop=stats.name, **{name: getattr(stats, name) for name in names})


def trajectory_from_message(message: JointTrajectory, now_ns: int) -> Trajectory:
    """The absolute trajectory of a message; stamp 0 starts now.

    Raises ValueError, in one sentence, for no points, points without positions, velocities for some points
    only, or times that do not increase.
    """
    start = stamp_ns(message.header.stamp) or now_ns
    if not message.points:
        raise ValueError("joint_trajectory has no points: send at least one")
    dims = {len(point.positions) for point in message.points}
    speeds = {len(point.velocities) for point in message.points}
    joints = len(message.joint_names)
    if dims != {joints} or speeds not in ({0}, {joints}):
        raise ValueError(
            f"joint_trajectory for {joints} joints has points with {sorted(dims)} positions and "
            f"{sorted(speeds)} velocities: give every point one of each per joint, or no velocities at all"
        )
    times = [start + stamp_ns(point.time_from_start) for point in message.points]
    positions = np.array([point.positions for point in message.points])
    velocities = np.array([point.velocities for point in message.points]) if speeds == {joints} else None
    return Trajectory(tuple(message.joint_names), np.array(times, dtype=np.int64), positions, velocities)
