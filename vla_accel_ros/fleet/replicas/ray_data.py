"""Check what is sent to a Ray actor and what comes back, by type, shape and range.

Requests hold exact types, made from checked messages: Ray pickles them, but never a pickle that a robot made.
Answers are not trusted; each function here converts one kind of answer to its result. They raise ValueError
if the replica refused, ReplicaLost if it lost the request or the answer is invalid, CancelledError if the
call was cancelled, and RuntimeError if it failed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.engine.session import Session
from vla_accel_ros.fleet.protocol import EncodedObservation, Round
from vla_accel_ros.fleet.replicas.ray_server import CANCELLED, FAILED, LOST, OF_A_CHUNK, OK, REFUSED
from vla_accel_ros.fleet.replicas.replica import FRAMES, SERVE, ReplicaLost, Served
from vla_accel_ros.types import Chunk

MOST_AT_ONCE = 4096
MOST_LETTERS = 1 << 22
"""Longest text answer, and longest field of a session [characters]."""


@dataclass(frozen=True)
class Started:
    """What a replica reports at its start. most: concurrent requests. updates: see LocalReplica. answers:
    concurrent questions."""

    pid: int
    limit: int
    updates: int
    answers: int
    profile: Profile
    observation_bytes: int
    config: EngineConfig | None


def plain(observation: EncodedObservation) -> EncodedObservation:
    """Return the observation in exact built-in and numpy types: bytes, arrays, strings. Raises ValueError,
    with one sentence, if an image or the state is anything else."""
    images: dict[str, bytes | np.ndarray] = {}
    for name, image in observation.images.items():
        if isinstance(image, np.ndarray):
            if image.dtype != np.uint8:
                raise ValueError(f"the image of {name} is {image.dtype}; send uint8 [H, W, 3]")
            images[str(name)] = np.ascontiguousarray(image).view(np.ndarray)
        else:
            images[str(name)] = bytes(image)
    state = np.asarray(observation.state)
    if state.dtype.kind not in "fiu":
        raise ValueError(f"the state is {state.dtype}; send numbers")
    stamps_ns = {str(name): int(stamp) for name, stamp in observation.stamps_ns.items()}
    return replace(
        observation,
        images=images,
        stamps_ns=stamps_ns,
        state=np.array(state, np.float32),
        instruction=str(observation.instruction),
        stamp_ns=int(observation.stamp_ns),
    )


def nothing(answer: Any) -> None:
    """Check an answer that has no value."""
    _value(answer)


def count(answer: Any) -> int:
    """Return the byte count of an echo."""
    return _whole(_value(answer), "an echo")


def started(answer: Any) -> Started:
    """Return the report of a start."""
    pid, limit, updates, answers, durations, observation_bytes, options = _parts(_value(answer), 7, "a start")
    times = {}
    for entry in durations if isinstance(durations, list) else ():
        stage, batch, seconds = _parts(entry, 3, "a measured time")
        if stage not in (SERVE, FRAMES) or not _is_time(seconds):
            raise ReplicaLost(f"a replica was measured as {stage!r}, {seconds!r} s; that is no time")
        times[stage, _whole(batch, "a batch", 1, MOST_AT_ONCE)] = float(seconds)
    return Started(
        _whole(pid, "its process"),
        _whole(limit, "requests at once", 1, MOST_AT_ONCE),
        _whole(updates, "updates of a chunk"),
        _whole(answers, "questions at once", 0, MOST_AT_ONCE),
        Profile(times),
        _whole(observation_bytes, "bytes of an observation", 0, 1 << 30),
        None if options is None else _config(options),
    )


def _config(options: Any) -> EngineConfig:
    """Return an engine's options. They come as (name, value) pairs, each of the type of its default."""
    usual: dict[Any, Any] = {field.name: field.default for field in fields(EngineConfig)}
    values: dict[str, Any] = {}
    for pair in _parts(options, len(usual), "an engine"):
        name, option = _parts(pair, 2, "an option")
        if type(name) is not str or type(option) is not type(usual.get(name)):
            raise ReplicaLost(f"{name!r} of an engine is {option!r}; that is no option of it")
        values[name] = option
    try:
        return EngineConfig(**values)
    except ValueError as error:
        raise ReplicaLost(f"the options of an engine cannot be: {error}") from error


def served(replica: str, round: Round, observation: EncodedObservation, answer: Any) -> Served:
    """Return the chunk of a request, with finite numbers and the observation's stamp. Whether it has this
    robot's joints is checked where the contract is known."""
    took_s, fields = _parts(_value(answer), 2, "a chunk")
    chunk = dict(zip(OF_A_CHUNK, _parts(fields, len(OF_A_CHUNK), "a chunk"), strict=True))
    actions = _numbers(chunk["actions"], 2, "actions")
    if 0 in actions.shape:
        raise ReplicaLost(f"{replica} answered with actions {actions.shape}")
    if chunk["stamp_ns"] != observation.stamp_ns:
        raise ReplicaLost(f"{replica} answered for another observation")
    if not _is_time(took_s) or not _is_time(chunk["step_dt_s"]):
        raise ReplicaLost(f"{replica} answered with {took_s!r} s and steps of {chunk['step_dt_s']!r} s")
    return Served(
        round,
        Chunk(
            actions,
            observation.stamp_ns,
            float(chunk["step_dt_s"]),
            _whole(chunk["kv_version"], "a version"),
            _whole(chunk["request_id"], "a number"),
            _numbers(chunk["update_magnitudes"], 1, "update_magnitudes"),
            state=_optional(chunk["state"], 1, "state"),
            step_magnitudes=_optional(chunk["step_magnitudes"], 2, "step_magnitudes"),
        ),
        float(took_s),
    )


def text(answer: Any) -> str:
    """Return the answer to a question."""
    return _words(_value(answer), "an answer")


def session(answer: Any) -> Session | None:
    """Return the session that describes how a robot's chunks are computed; None if there is none."""
    parts = _value(answer)
    if parts is None:
        return None
    names = [field.name for field in fields(Session)]
    values: dict[str, Any] = dict(zip(names, _parts(parts, len(names), "a session"), strict=True))
    for name, value in values.items():
        for text in value if isinstance(value, tuple) else (value,):
            _words(text, f"{name} of a session")
        if isinstance(value, tuple) != (name in ("cameras", "topics", "versions")):
            raise ReplicaLost(f"{name} of a session is {type(value).__name__}")
    return Session(**values)


def _words(value: Any, what: str) -> str:
    if type(value) is not str or len(value) > MOST_LETTERS:
        raise ReplicaLost(
            f"{what} is {type(value).__name__}; that is no text of {MOST_LETTERS} letters at most"
        )
    return value


def _value(answer: Any) -> Any:
    kind, value = _parts(answer, 2, "an answer")
    if kind == OK:
        return value
    shown = value if isinstance(value, str) else repr(value)[:200]
    if kind == REFUSED:
        raise ValueError(shown)
    if kind == CANCELLED:
        raise CancelledError
    if kind == FAILED:
        raise RuntimeError(shown)
    raise ReplicaLost(shown if kind == LOST else f"{kind!r} is no answer of a replica")


def _parts(value: Any, count: int, what: str) -> Sequence[Any]:
    if not isinstance(value, tuple) or len(value) != count:
        raise ReplicaLost(f"{what} has {count} parts; what came is {type(value).__name__}")
    return value


def _whole(value: Any, what: str, least: int = 0, most: int = 1 << 62) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ReplicaLost(f"{what} is {value!r}; that is no number from {least} to {most}")
    return value


def _is_time(value: Any) -> bool:
    return isinstance(value, float) and 0.0 < value < math.inf


def _numbers(value: Any, axes: int, what: str) -> np.ndarray:
    """Return a finite float32 array, copied because the original lies in memory that Ray shares."""
    if type(value) is not np.ndarray or value.dtype != np.float32 or value.ndim != axes:
        raise ReplicaLost(f"{what} is {type(value).__name__}; that is no float32 array of {axes} axes")
    if not np.isfinite(value).all():
        raise ReplicaLost(f"{what} has numbers that are none")
    return value.copy()


def _optional(value: Any, axes: int, what: str) -> np.ndarray | None:
    return None if value is None else _numbers(value, axes, what)
