"""Reads a bag as the engine saw it: each observation with its images, chunks and answers.

The bag is read twice, or more often if asked for the moments of some sessions at a time. The first pass reads
the small messages: observations, their engines, and the chunks and finished answers made from them, and which
images there are. The second reads the images and keeps only those that a complete observation still waits
for, so a bag may be larger than memory. A recorder may drop images, and a bag may begin or end in the middle,
so incomplete observations are counted. So are messages that cannot be read: the nodes refused them, too. A
bag may be of several robots, whose stamps and versions may be equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vla_accel_ros.contract.parts import Camera
from vla_accel_ros.engine.session import Session
from vla_accel_ros.fleet.replicas.decoding import pixels_of
from vla_accel_ros.fleet.robot.observing import jpeg_of
from vla_accel_ros.recording.reader import Bag, Entry
from vla_accel_ros.recording.robots import SESSION
from vla_accel_ros.tools.bags import (
    CHUNK,
    COMPRESSED,
    IMAGE,
    OBSERVED,
    TEXT,
    image_stamp_ns,
    image_topic,
    picture,
    stamp_ns,
)
from vla_accel_ros.types import Agreement


@dataclass(frozen=True)
class RecordedChunk:
    """A recorded chunk. actions: [H, A] float32, ROS units; magnitudes: [H] float32; state: [D] float32 or
    None; step_states: [S, D] float32 or None, see Chunk."""

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
    """One observation with its session, images, joints and results.

    images: the contract's camera name -> [H, W, 3] uint8 RGB. state: [D] float32 in the policy's units.
    texts: finished answers as (prompt, text).
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
    """An observation, and its images that were not read yet: (topic, stamp) -> camera."""

    key: _Key
    message: Any
    session: Session
    missing: dict[tuple[str, int], str]
    images: dict[str, np.ndarray] = field(default_factory=dict)


_Key = tuple[str, int, int]
"""Namespace, version and stamp of an observation."""


class Moments:
    """Iterates over the moments of a bag, in the order in which their images are complete.

    Attributes: `sessions` by id; `counts`, complete after the iteration: "observations", "incomplete" (an
    image is missing), "of no session", "chunks", "chunks of no observation" and "unreadable" (messages);
    `unreadable`, a sentence about the first of these. Raises ValueError if the bag is damaged or has no
    session message.
    """

    def __init__(self, bag: Bag) -> None:
        self._bag = bag
        self.sessions: dict[str, Session] = {}
        self._told: dict[str, list[str]] = {}  # ids of sessions by namespace
        self.counts: Counter[str] = Counter()
        self._chunks: dict[_Key, list[RecordedChunk]] = {}
        self._texts: dict[_Key, list[tuple[str, str]]] = {}
        self._observed: dict[_Key, Any] = {}
        self._pictures = set[tuple[str, int]]()  # topic and stamp
        self.unreadable = ""
        self._read_words()

    @property
    def lacking(self) -> list[str]:
        """Sentences about what of the bag was not replayed, complete after the iteration."""
        counts = self.counts
        sentences = {
            "incomplete": "observations have images that are not in the bag",
            "of no session": "observations are of no session in the bag",
            "chunks of no observation": "chunks have no observation in the bag",
            "unreadable": f"messages cannot be read; {self.unreadable}",
        }
        return [f"{counts[kind]} {reason}" for kind, reason in sentences.items() if counts[kind]]

    @property
    def worth_replaying(self) -> int:
        """How many observations have a chunk or an answer; some of them may be incomplete."""
        return len(self._observed.keys() & (self._chunks.keys() | self._texts.keys()))

    def sessions_of(self, robot: str) -> list[Session]:
        """Return the sessions of a robot, given by its namespace, in order. Raises ValueError if it has
        none."""
        if robot not in self._told:
            raise ValueError(
                f"{self._bag.path} has no message of the robot's session: record with the node recorder"
            )
        return [self.sessions[id] for id in dict.fromkeys(self._told[robot])]

    def complete(self, sessions: Collection[str]) -> int:
        """Return how many observations of sessions have all their images in the bag."""
        return sum(map(self._is_complete, self._waiting(sessions)))

    def __iter__(self) -> Iterator[Moment]:
        return self.of(self.sessions)

    def of(self, sessions: Collection[str]) -> Iterator[Moment]:
        """Yield the moments of sessions, given by their ids. Every call reads the images once."""
        waiting_for: dict[tuple[str, int], list[_Waiting]] = {}
        for observation in self._waiting(sessions):
            if not self._is_complete(observation):
                self.counts["incomplete"] += 1
                continue
            for key in observation.missing:
                waiting_for.setdefault(key, []).append(observation)
        for entry in self._bag.entries((IMAGE, COMPRESSED)):
            image = self._place(entry)
            if image is None or image not in waiting_for:
                continue
            try:
                pixels = picture(entry)
            except ValueError as error:
                self._refuse(entry, error)
                continue
            for observation in waiting_for.pop(image):
                observation.images[observation.missing.pop(image)] = pixels
                if not observation.missing:
                    yield self._moment(observation)
        unfinished = {id(observation) for users in waiting_for.values() for observation in users}
        self.counts["incomplete"] += len(unfinished)

    def _read_words(self) -> None:
        """Read the small messages, and the stamps of the images: the first pass."""
        for entry in self._bag.entries((SESSION, OBSERVED, CHUNK, TEXT, IMAGE, COMPRESSED)):
            try:
                self._read(entry)
            except ValueError as error:
                self._refuse(entry, error)
        if not self.sessions:
            raise ValueError(
                f"{self._bag.path} has no message of type {SESSION}, without which its chunks cannot be "
                "computed again: record with the node recorder, or at least the topics session and observed. "
                "`vla replay --publish` plays what the robot saw"
            )
        self.counts["observations"] = len(self._observed)
        assigned = sum(message.session in self.sessions for message in self._observed.values())
        self.counts["of no session"] = len(self._observed) - assigned
        self.counts["chunks"] = sum(map(len, self._chunks.values()))
        self.counts["chunks of no observation"] = sum(
            len(chunks) for key, chunks in self._chunks.items() if key not in self._observed
        )

    def _read(self, entry: Entry) -> None:
        """Read a message of the first pass. Raises ValueError if it cannot be read."""
        if entry.type in (IMAGE, COMPRESSED):
            self._pictures.add((entry.topic, image_stamp_ns(entry)))
            return
        message, space = self._bag.decode(entry), entry.topic.rpartition("/")[0]
        if entry.type == SESSION:
            self.sessions[message.id] = Session.from_message(message)
            self._told.setdefault(space, []).append(message.id)
            return
        key = (space, message.kv_version, stamp_ns(message.header.stamp))
        if entry.type == OBSERVED:
            self._observed[key] = message
        elif entry.type == CHUNK:
            self._chunks.setdefault(key, []).append(_chunk(message))
        elif message.finished and not getattr(message, "refused", False):
            self._texts.setdefault(key, []).append((message.prompt, message.text))

    def _refuse(self, entry: Entry, error: ValueError) -> None:
        self.counts["unreadable"] += 1
        self.unreadable = self.unreadable or f"{entry.topic}: {error}"

    def _place(self, entry: Entry) -> tuple[str, int] | None:
        """Return topic and stamp of an image; None if it cannot be read."""
        try:
            return entry.topic, image_stamp_ns(entry)
        except ValueError:
            return None

    def _waiting(self, sessions: Collection[str]) -> Iterator[_Waiting]:
        """Yield the observations of sessions."""
        for key, message in self._observed.items():
            if message.session not in sessions:
                continue
            session = self.sessions[message.session]
            topics = dict(zip(session.cameras, session.topics))
            images = {
                (image_topic(self._bag, topics.get(camera, "")), stamp_ns(stamp)): camera
                for camera, stamp in zip(message.cameras, message.stamps)
            }
            yield _Waiting(key, message, session, images)

    def _is_complete(self, one: _Waiting) -> bool:
        """Whether all images of an observation are in the bag."""
        return bool(one.missing) and one.missing.keys() <= self._pictures

    def _moment(self, one: _Waiting) -> Moment:
        message, key = one.message, one.key
        return Moment(
            session=one.session,
            stamp_ns=stamp_ns(message.header.stamp),
            instruction=message.instruction,
            state=np.array(message.state, np.float32),
            images=one.images,
            chunks=tuple(self._chunks.get(key, ())),
            texts=tuple(self._texts.get(key, ())),
        )


def network_view(camera: Camera, pixels: np.ndarray, jpeg_quality: int | None) -> np.ndarray:
    """Return a picture uint8 [H, W, 3] as the engine gets it: a fleet's robot may send as JPEG what the bag
    holds as pixels."""
    if jpeg_quality is not None and camera.transport != "compressed":
        pixels = pixels_of(camera.name, jpeg_of(pixels, jpeg_quality), camera.max_pixels)
    return camera.view(pixels)


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
    """Return the joints given to each denoising step, [S, D] float32.

    None if every step got `state`, as in bags older than the option. message: an ActionChunk, or one decoded
    from a bag. Raises ValueError if the numbers are not whole rows.
    """
    numbers, width = np.array(getattr(message, "step_states", ()), np.float32), len(message.state)
    if not numbers.size:
        return None
    if not width or numbers.size % width:
        raise ValueError(
            f"action_chunk {message.request_id} has {numbers.size} numbers for the joints of its steps, "
            f"which are not whole rows of {width}"
        )
    return numbers.reshape(-1, width)


def agreement_from_message(message: Any) -> Agreement | None:
    """Return what the chunk had to agree with, as its engine got it; None for a free chunk.

    message: an ActionChunk, or one decoded from a bag. Raises ValueError if the numbers are not whole rows.
    """
    if not message.agreement:
        return None
    if not message.action_dim or len(message.agreed_actions) % message.action_dim:
        raise ValueError(
            f"action_chunk {message.request_id} agrees with {len(message.agreed_actions)} numbers, which are "
            f"not whole rows of {message.action_dim}"
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
