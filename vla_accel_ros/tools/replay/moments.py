"""A bag as the engine saw it: each observation with its images, and what was made of it.

Read twice. First everything small: which observations there were, by which engine, which chunks and finished
answers came of each. Then the images, of which only those are kept that an observation waits for, so that a
bag may be longer than memory. What cannot be put together again is counted, because a recorder may drop
images, and a bag may begin or end in the middle. Messages of a bag have the fields of ROS's, but are decoded
by classes of their own; here they become the package's types, the contract of a session included.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from vla_accel_ros.contract import bounded_yaml
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.engine.session import Session
from vla_accel_ros.recording.reader import Bag, Entry
from vla_accel_ros.sensing.cameras.compressed import decode, write_bgr
from vla_accel_ros.sensing.cameras.image import compressed_view, image_view, write_rgb
from vla_accel_ros.types import Agreement

SESSION, OBSERVED = "vla_accel_msgs/msg/Session", "vla_accel_msgs/msg/Observed"
CHUNK, TEXT = "vla_accel_msgs/msg/ActionChunk", "vla_accel_msgs/msg/LanguageOutput"
IMAGE, COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"


@dataclass(frozen=True)
class RecordedChunk:
    """actions: float32 [H, A], ROS units; magnitudes: float32 [H]; state: float32 [D] or None,
    step_states: float32 [S, D] or None, see Chunk."""

    request_id: int
    stamp_ns: int
    joints: tuple[str, ...]
    actions: np.ndarray
    magnitudes: np.ndarray
    state: np.ndarray | None
    agreement: Agreement | None
    step_states: np.ndarray | None = None


@dataclass(frozen=True)
class Moment:
    """One observation: its engine, its images and joints, and what came of it.

    images: the contract's camera name -> uint8 [H, W, 3], RGB. state: float32 [D], the policy's units.
    texts: finished answers, each as (its prompt, text).
    """

    session: Session
    stamp_ns: int
    instruction: str
    state: np.ndarray
    images: dict[str, np.ndarray]
    chunks: tuple[RecordedChunk, ...]
    texts: tuple[tuple[str, str], ...]


@dataclass
class _Waiting:
    """An observation, and which of its images are not there yet: (topic, stamp) -> camera."""

    message: Any
    session: Session
    wanted: dict[tuple[str, int], str]
    images: dict[str, np.ndarray] = field(default_factory=dict)


_Key = tuple[int, int]


class Moments:
    """Iterates over the moments of a bag, in the order in which their images are complete.

    Attributes: `sessions` by id; `counts`, after the iteration: "observations", "incomplete" (of which an
    image is not in the bag), "of no session", "chunks" and "chunks of no observation".
    Raises ValueError for a bag that is damaged, or has no session.
    """

    def __init__(self, bag: Bag) -> None:
        self._bag = bag
        self.sessions: dict[str, Session] = {}
        self.counts: Counter[str] = Counter()
        self._chunks: dict[_Key, list[RecordedChunk]] = {}
        self._texts: dict[_Key, list[tuple[str, str]]] = {}
        self._observed: dict[_Key, Any] = {}
        self._read_words()

    @property
    def worth_replaying(self) -> int:
        """How many observations a chunk or an answer came of; some of them may be incomplete."""
        return len(self._observed.keys() & (self._chunks.keys() | self._texts.keys()))

    def __iter__(self) -> Iterator[Moment]:
        waiting = self._waiting()
        wanted: dict[tuple[str, int], list[_Waiting]] = {}
        for one in waiting:
            for key in one.wanted:
                wanted.setdefault(key, []).append(one)
        for entry in self._bag.entries((IMAGE, COMPRESSED)):
            users = wanted.pop((entry.topic, image_stamp_ns(entry)), [])
            seen = picture(entry) if users else None
            for one in users:
                assert seen is not None
                one.images[one.wanted.pop((entry.topic, image_stamp_ns(entry)))] = seen
                if not one.wanted:
                    yield self._moment(one)
        self.counts["incomplete"] = sum(bool(one.wanted) for one in waiting)

    def _read_words(self) -> None:
        """The first reading."""
        for entry in self._bag.entries((SESSION, OBSERVED, CHUNK, TEXT)):
            message = self._bag.decode(entry)
            if entry.type == SESSION:
                self.sessions[message.id] = session_of(message)
                continue
            key = (message.kv_version, stamp_ns(message.header.stamp))
            if entry.type == OBSERVED:
                self._observed[key] = message
            elif entry.type == CHUNK:
                self._chunks.setdefault(key, []).append(_chunk(message))
            elif message.finished and not getattr(message, "refused", False):
                self._texts.setdefault(key, []).append((message.prompt, message.text))
        if not self.sessions:
            raise ValueError(
                f"{self._bag.path} has no message of type {SESSION}, without which its chunks cannot be "
                "computed again: record with the node recorder, or at least the topics session and observed. "
                "`vla replay --publish` plays what the robot saw"
            )
        self.counts["observations"] = len(self._observed)
        self.counts["chunks"] = sum(map(len, self._chunks.values()))
        self.counts["chunks of no observation"] = sum(
            len(chunks) for key, chunks in self._chunks.items() if key not in self._observed
        )

    def _waiting(self) -> list[_Waiting]:
        found = []
        for message in self._observed.values():
            session = self.sessions.get(message.session)
            if session is None:
                self.counts["of no session"] += 1
                continue
            topics = dict(zip(session.cameras, session.topics))
            wanted = {
                (self._recorded(topics[camera]), stamp_ns(stamp)): camera
                for camera, stamp in zip(message.cameras, message.stamps)
            }
            found.append(_Waiting(message, session, wanted))
        return found

    def _recorded(self, topic: str) -> str:
        """Where the images of a camera's topic are: frames of a ring are recorded beside it, as images."""
        of_ring = f"{topic}/image"
        return of_ring if of_ring in self._bag.topics else topic

    def _moment(self, one: _Waiting) -> Moment:
        message = one.message
        stamp = stamp_ns(message.header.stamp)
        key = (message.kv_version, stamp)
        return Moment(
            session=one.session,
            stamp_ns=stamp,
            instruction=message.instruction,
            state=np.array(message.state, np.float32),
            images=one.images,
            chunks=tuple(self._chunks.get(key, ())),
            texts=tuple(self._texts.get(key, ())),
        )


def stamp_ns(stamp: Any) -> int:
    """A decoded builtin_interfaces/Time in nanoseconds."""
    return int(stamp.sec) * 1_000_000_000 + int(stamp.nanosec)


def image_stamp_ns(entry: Entry) -> int:
    """When a recorded Image or CompressedImage was taken."""
    return (image_view if entry.type == IMAGE else compressed_view)(entry.data).stamp_ns


def picture(entry: Entry) -> np.ndarray:
    """The pixels as the node's own ingest makes them of the message."""
    if entry.type == IMAGE:
        view = image_view(entry.data)
        out = np.empty((view.height, view.width, 3), np.uint8)
        write_rgb(view, out)
        return out
    decoded = decode(compressed_view(entry.data))
    out = np.empty_like(decoded)
    write_bgr(decoded, out)
    return out


def session_of(message: Any) -> Session:
    """A decoded Session message."""
    told = {name: getattr(message, name) for name in Session.__dataclass_fields__}
    fields: Any = {name: tuple(v) if isinstance(v, list) else v for name, v in told.items()}
    return Session(**fields)


def _chunk(message: Any) -> RecordedChunk:
    actions = np.array(message.actions, np.float32).reshape(message.horizon, message.action_dim)
    return RecordedChunk(
        request_id=message.request_id,
        stamp_ns=stamp_ns(message.header.stamp),
        joints=tuple(message.joint_names),
        actions=actions,
        magnitudes=np.array(message.update_magnitudes, np.float32),
        state=np.array(message.state, np.float32) if len(message.state) else None,
        agreement=agreement_from_message(message),
        step_states=step_states_from_message(message),
    )


def step_states_from_message(message: Any) -> np.ndarray | None:
    """The joints that each denoising step was given, float32 [S, D]; None where all had `state`, as in bags
    from before there was a choice. message: as for agreement_from_message.

    Raises ValueError, in one sentence, when its numbers are no whole rows.
    """
    given, width = np.array(getattr(message, "step_states", ()), np.float32), len(message.state)
    if not given.size:
        return None
    if not width or given.size % width:
        raise ValueError(
            f"action_chunk {message.request_id} has {given.size} numbers for the joints of its steps, which "
            f"are no rows of {width}"
        )
    return given.reshape(-1, width)


def agreement_from_message(message: Any) -> Agreement | None:
    """What a chunk was made to agree with, as its engine had it; None when it is free.

    message: an ActionChunk, or one decoded from a bag.
    Raises ValueError, in one sentence, when its numbers are no whole rows.
    """
    if not message.agreement:
        return None
    if not message.action_dim or len(message.agreed_actions) % message.action_dim:
        raise ValueError(
            f"action_chunk {message.request_id} agrees with {len(message.agreed_actions)} numbers, which are "
            f"no rows of {message.action_dim}"
        )
    return Agreement(
        method=message.agreement,
        actions=np.array(message.agreed_actions, np.float32).reshape(-1, message.action_dim),
        delay=message.agreed_delay,
        end=message.agreed_end,
        schedule=message.agreed_schedule,
        jacobian=message.agreed_jacobian,
        max_weight=message.agreed_max_weight,
        previous=message.agreed_previous,
    )


def contract_of(session: Session) -> Contract:
    """Load it from the session's texts. Raises ValueError for one that this version refuses."""
    with tempfile.TemporaryDirectory() as folder:
        return Contract.load(contract_file(session, Path(folder)))


def contract_file(session: Session, folder: Path) -> Path:
    """The session's contract as a file, beside its URDF."""
    file = folder / "contract.yaml"
    file.write_text(session.contract)
    if session.urdf:
        (folder / "robot.urdf").write_text(session.urdf)
        try:
            document = bounded_yaml.load(session.contract)
        except (yaml.YAMLError, RecursionError):
            return file  # who loads it says what is wrong
        if isinstance(document, dict):
            file.write_text(yaml.safe_dump({**document, "urdf": "robot.urdf"}, sort_keys=False))
    return file
