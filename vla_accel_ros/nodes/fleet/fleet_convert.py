"""Converts between fleet.protocol and the messages vla_accel_msgs/Fleet*, both ways.

Incoming messages are from another machine, so all of them are checked here once against the robot's contract.
Each refusal is a ValueError of one sentence that names the robot, the field and its value. As in `convert`,
chunks in messages are in ROS units: `answer_to_message` takes a chunk in the policy's units, as an engine
made it, and `answer_from_message` gives one in ROS units.
"""

from __future__ import annotations

import math
from array import array
from typing import Protocol

import numpy as np
from builtin_interfaces.msg import Time

from vla_accel_msgs.msg import (
    ActionChunk,
    FleetAdmission,
    FleetAnswer,
    FleetCall,
    FleetRequest,
    FleetRobot,
    LanguageOutput,
    Observed,
)
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.fleet.protocol import (
    MOST_WORDS,
    Admission,
    ChunkAnswer,
    ChunkRequest,
    EncodedObservation,
    RobotDescription,
    Round,
    TextAnswer,
)
from vla_accel_ros.fleet.robot.observing import Seen
from vla_accel_ros.nodes.brief import brief
from vla_accel_ros.nodes.fleet.fleet_pictures import picture_from_message, picture_to_message, pictures
from vla_accel_ros.nodes.messages.convert import chunk_from_message, chunk_to_message, set_stamp, stamp_ns

MOST_LETTERS = 256
"""Limit for the names of processes, robots and replicas."""
LEAST_HZ = 1e-3
"""Lowest rate at which a robot may need chunks; 0 says that the rate is not known."""


class _Numbered(Protocol):
    engine: str
    robot: str
    task: int
    round: int


def description_to_message(description: RobotDescription, now_ns: int) -> FleetRobot:
    """A robot's description as a message; the fields of both have the same names."""
    message = FleetRobot(**{**vars(description), "chunks_per_s": float(description.chunks_per_s)})
    set_stamp(message.header.stamp, now_ns)
    return message


def description_from_message(message: FleetRobot) -> RobotDescription:
    """The RobotDescription of a message. Raises ValueError if its name, engine or contract is missing, a text
    is too long, or its rate is invalid."""
    who = f"fleet/robot of {message.robot[:MOST_LETTERS]!r}"
    _check_names(who, message.engine, message.robot)
    if not message.contract.strip():
        raise ValueError(f"{who} has no contract: send the text of the robot's contract file")
    description = RobotDescription(
        engine=message.engine,
        robot=message.robot,
        contract=message.contract,
        urdf=message.urdf,
        statistics=message.statistics,
        horizon=message.horizon,
        priority=message.priority,
        chunks_per_s=_needed(who, message.chunks_per_s),
    )
    description.check_lengths()
    return description


def admission_to_message(admission: Admission) -> FleetAdmission:
    """An admission as a message; the fields of both have the same names."""
    converted = {"chunks_per_s": float(admission.chunks_per_s), "reason": brief(admission.reason)}
    return FleetAdmission(**{**vars(admission), **converted})


def admission_from_message(message: FleetAdmission) -> Admission:
    """The Admission of a message. Raises ValueError if a name is missing, or a refusal has no reason."""
    who = f"fleet/admission for {message.robot[:MOST_LETTERS]!r}"
    _check_names(who, message.engine, message.robot)
    _check_name(who, "scheduler", message.scheduler)
    if not message.admitted and not message.reason:
        raise ValueError(f"{who} refuses the robot without a reason: have the scheduler say why")
    return Admission(
        engine=message.engine,
        robot=message.robot,
        scheduler=message.scheduler,
        admitted=message.admitted,
        reason=brief(message.reason),
        chunks_per_s=_seconds(who, "chunks_per_s", message.chunks_per_s),
    )


def request_to_message(request: ChunkRequest) -> FleetRequest:
    """A request for a chunk as a message, with its observation. Compressed images go as they are, pixels as
    rgb8."""
    observation = request.observation
    message = FleetRequest(
        engine=request.round.engine,
        robot=request.round.robot,
        task=request.round.task,
        round=request.round.number,
        attempt=request.attempt,
        instruction=observation.instruction,
        state=array("f", np.asarray(observation.state, dtype=np.float32).tobytes()),
        executed_s=float(request.executed_s),
        remaining=request.remaining,
        stalled_s=float(request.stalled_s),
        within_s=float(request.within_s),
        priority=request.priority,
    )
    set_stamp(message.header.stamp, request.sent_ns)
    set_stamp(message.stamp, observation.stamp_ns)
    for camera, image in observation.images.items():
        picture = picture_to_message(image)
        picture.header.frame_id = camera
        set_stamp(picture.header.stamp, observation.stamps_ns[camera])
        (message.compressed if isinstance(image, bytes) else message.raw).append(picture)
    return message


def request_from_message(message: FleetRequest, contract: Contract) -> ChunkRequest:
    """The ChunkRequest of a message, its pixels as RGB.

    contract: of the robot that sent it. Raises ValueError for a camera that is unknown, missing or duplicate,
    an invalid picture, a state that is not one finite number for each joint, an empty or too long
    instruction, and invalid times. Compressed images are not decoded here: only their headers are read.
    """
    who = f"fleet/request {message.round} of {message.robot[:MOST_LETTERS]!r}"
    round_ = _round(who, message)
    cameras = {picture.name: picture for picture in contract.pictures}
    images: dict[str, bytes | np.ndarray] = {}
    stamps_ns: dict[str, int] = {}
    for name, picture in pictures(message):
        if name not in cameras:
            raise ValueError(f"{who} has an image of camera {name!r}: the contract has {', '.join(cameras)}")
        if name in images:
            raise ValueError(f"{who} has two images of camera {name!r}: send one of each")
        try:
            images[name] = picture_from_message(picture, cameras[name])
        except ValueError as refusal:
            raise ValueError(f"{who}, camera {name}: {refusal}") from refusal
        stamps_ns[name] = stamp_ns(picture.header.stamp)
    newest = [camera.name for camera in contract.cameras]
    missing = [name for name in (cameras if len(images) > len(newest) else newest) if name not in images]
    if missing:
        raise ValueError(f"{who} has no image of camera {missing[0]!r}: send one of each of the contract's")
    stamp = stamp_ns(message.stamp)
    if stamp != (oldest_ns := min(stamps_ns[name] for name in newest)):
        times = f"{stamp} ns, its oldest image at {oldest_ns} ns"
        raise ValueError(f"{who} says it was observed at {times}: these must be the same")
    return ChunkRequest(
        round=round_,
        attempt=message.attempt,
        sent_ns=stamp_ns(message.header.stamp),
        observation=EncodedObservation(
            images, stamps_ns, _state(who, message, contract), _instruction(who, message), stamp
        ),
        executed_s=_executed(who, message.executed_s),
        remaining=message.remaining,
        stalled_s=_seconds(who, "stalled_s", message.stalled_s),
        within_s=_seconds(who, "within_s", message.within_s, infinite=True),
        priority=message.priority,
    )


def call_to_message(round_: Round) -> FleetCall:
    """A scheduler's request for a new observation for this round."""
    return FleetCall(engine=round_.engine, robot=round_.robot, task=round_.task, round=round_.number)


def call_from_message(message: FleetCall) -> Round:
    """The round for which a new observation is requested. Raises ValueError if a name is missing."""
    return _round(f"fleet/call for {message.robot[:MOST_LETTERS]!r}", message)


def answer_to_message(answer: ChunkAnswer, contract: Contract) -> FleetAnswer:
    """A chunk in the policy's units, or a refusal, as a message in ROS units."""
    message = FleetAnswer(
        scheduler=answer.scheduler,
        engine=answer.round.engine,
        robot=answer.round.robot,
        task=answer.round.task,
        round=answer.round.number,
        attempt=answer.attempt,
        refusal=brief(answer.refusal),
        retry_s=float(answer.retry_s),
        queued_s=float(answer.queued_s),
        served_s=float(answer.served_s),
        replica=answer.replica,
    )
    set_stamp(message.sent, answer.sent_ns)
    if answer.chunk is not None:
        message.chunk = chunk_to_message(answer.chunk, contract, answer.served_s)
    return message


def answer_from_message(message: FleetAnswer, contract: Contract) -> ChunkAnswer:
    """The ChunkAnswer of a message, its chunk in ROS units.

    Raises ValueError if a name is missing, if it has both a chunk and a refusal or neither, for invalid
    times, and for a chunk that does not fit this contract's joints and step (as chunk_from_message does).
    """
    who = f"fleet/answer to round {message.round} of {message.robot[:MOST_LETTERS]!r}"
    round_ = _round(who, message)
    _check_name(who, "scheduler", message.scheduler)
    has_chunk = message.chunk != ActionChunk()
    if has_chunk == bool(message.refusal):
        raise ValueError(
            f"{who} has {'a' if has_chunk else 'no'} chunk and {'a' if has_chunk else 'no'} refusal"
        )
    chunk = None
    if has_chunk:
        chunk = chunk_from_message(message.chunk, contract.action_names)
        if set(message.chunk.joint_names) != set(contract.action_names):
            extra = set(message.chunk.joint_names) - set(contract.action_names)
            raise ValueError(f"{who} has a chunk for {min(extra)!r} too, which the contract does not have")
        if not math.isclose(chunk.step_dt_s, contract.chunk.step_dt_s, rel_tol=1e-6):
            raise ValueError(
                f"{who} has a chunk of {chunk.step_dt_s:g} s steps, the contract's chunk.step_dt_s is "
                f"{contract.chunk.step_dt_s:g}"
            )
    return ChunkAnswer(
        round=round_,
        attempt=message.attempt,
        scheduler=message.scheduler,
        sent_ns=stamp_ns(message.sent),
        chunk=chunk,
        refusal=brief(message.refusal),
        retry_s=_seconds(who, "retry_s", message.retry_s),
        queued_s=_seconds(who, "queued_s", message.queued_s),
        served_s=_seconds(who, "served_s", message.served_s),
        replica=message.replica[:MOST_LETTERS],
    )


def text_to_message(answer: TextAnswer, scheduler: str) -> LanguageOutput:
    """The answer to a question, or why there is none, as a message. On fleet/text, header.frame_id names the
    writer as "SCHEDULER/REPLICA", and request_id is the number of the question."""
    message = LanguageOutput(
        request_id=answer.round.number,
        prompt=answer.prompt,
        text=brief(answer.text) if answer.refused else answer.text,
        finished=True,
        refused=answer.refused,
    )
    message.header.frame_id = f"{scheduler}/{answer.replica}"
    set_stamp(message.header.stamp, answer.stamp_ns)
    return message


def text_from_message(message: LanguageOutput, engine: str, robot: str) -> TextAnswer:
    """The TextAnswer of a message on fleet/text, for the process that received it; its replica is
    "SCHEDULER/REPLICA". Raises ValueError if the answer is not finished."""
    if not message.finished:
        raise ValueError(f"fleet/text {message.request_id} is not finished: a fleet sends whole answers")
    return TextAnswer(
        Round(engine, robot, 0, message.request_id),
        message.prompt,
        stamp_ns(message.header.stamp),
        brief(message.text) if message.refused else message.text,
        message.refused,
        message.header.frame_id[: 2 * MOST_LETTERS],
    )


def seen_to_message(seen: Seen, version: int) -> Observed:
    """What a chunk or an answer of a fleet was computed from. version: its kv_version."""
    message = Observed(session=seen.session, kv_version=version, instruction=seen.instruction)
    set_stamp(message.header.stamp, seen.stamp_ns)
    message.cameras, message.stamps = list(seen.stamps_ns), [Time() for _ in seen.stamps_ns]
    for stamp, at_ns in zip(message.stamps, seen.stamps_ns.values()):
        set_stamp(stamp, at_ns)
    message.state = array("f", np.asarray(seen.state, dtype=np.float32).tobytes())
    return message


def robot_text_to_message(answer: TextAnswer, version: int) -> LanguageOutput:
    """A fleet's whole answer as a message of the robot. version: of the observation that it is about."""
    message = text_to_message(answer, "")
    message.kv_version, message.header.frame_id = version, ""
    return message


def _round(who: str, message: _Numbered) -> Round:
    _check_names(who, message.engine, message.robot)
    return Round(message.engine, message.robot, message.task, message.round)


def _check_names(who: str, engine: str, robot: str) -> None:
    _check_name(who, "engine", engine)
    if not robot.startswith("/") or len(robot) > MOST_LETTERS:
        raise ValueError(f"{who} names no robot: `robot` is its namespace and begins with a slash")


def _check_name(who: str, field: str, name: str) -> None:
    if not 0 < len(name) <= MOST_LETTERS:
        raise ValueError(f"{who} has {len(name)} letters for `{field}`: give 1 to {MOST_LETTERS}")


def _seconds(who: str, field: str, told: float, infinite: bool = False) -> float:
    if not (told >= 0.0 and (infinite or math.isfinite(told))):
        raise ValueError(f"{who} has {field} {told}: it must be 0 or more")
    return told


def _needed(who: str, told: float) -> float:
    if 0.0 < told < LEAST_HZ:
        raise ValueError(f"{who} has chunks_per_s {told:g}: it must be 0 or at least {LEAST_HZ:g}")
    return _seconds(who, "chunks_per_s", told)


def _executed(who: str, told: float) -> float:
    if not math.isfinite(told):
        raise ValueError(f"{who} has executed_s {told}: give seconds, or -1 where nothing is executed")
    return told if told >= 0.0 else -1.0


def _state(who: str, message: FleetRequest, contract: Contract) -> np.ndarray:
    state, names = np.array(message.state, dtype=np.float32), contract.state_names
    if len(state) != len(names):
        raise ValueError(f"{who} has a state of {len(state)} numbers for {len(names)} joints")
    if not np.isfinite(state).all():
        index = int(np.argmin(np.isfinite(state)))
        raise ValueError(f"{who} has {state[index]} for joint {names[index]!r}, which is not finite")
    return state


def _instruction(who: str, message: FleetRequest) -> str:
    if not message.instruction.strip() or len(message.instruction) > MOST_WORDS:
        raise ValueError(
            f"{who} has an instruction of {len(message.instruction)} letters: give 1 to {MOST_WORDS}"
        )
    return message.instruction
