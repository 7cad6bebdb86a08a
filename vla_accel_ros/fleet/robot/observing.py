"""A robot's observations, encoded for a fleet, and what its chunks and answers were made from.

A JPEG or PNG from a camera is sent unchanged: only its header is read, and it is not decoded or encoded
again. Other images are sent as pixels, or as JPEG if configured, which costs a few milliseconds and changes
the pixels slightly.

For recordings, observations and the engines that the robot heard of are kept: a chunk carries the stamp of
its observation, and its answer names the replica. Both tables are bounded: old observations and the engines
of schedulers that are gone are forgotten.
"""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from dataclasses import dataclass, replace

import cv2
import numpy as np

from vla_accel_ros.contract.contract import Camera, Contract
from vla_accel_ros.engine.session import REPLICA, Session
from vla_accel_ros.fleet.protocol import EncodedObservation
from vla_accel_ros.sensing.arrivals import IMAGE_HINT
from vla_accel_ros.sensing.cameras.compressed import Header, check_picture
from vla_accel_ros.sensing.cameras.frames import Frame
from vla_accel_ros.sensing.cameras.image import compressed_view
from vla_accel_ros.sensing.ingest import Ingest

_KEPT = 8
"""Compressed images kept for each camera; more than the slots that an observation can come from."""


class EncodedIngest(Ingest):
    """An Ingest without a GPU, whose observations are sent to a fleet.

    jpeg_quality: 1 to 100, for images that arrive as pixels; None sends pixels. See Ingest for the rest.
    """

    def __init__(
        self, contract: Contract, image_hint: str = IMAGE_HINT, jpeg_quality: int | None = None
    ) -> None:
        self._pictures: dict[str, deque[tuple[int, bytes, Header]]] = {}
        for camera in contract.cameras:
            if camera.transport == "compressed":
                kept = self._pictures[camera.name] = deque(maxlen=_KEPT + camera.kept)
                self._pictures |= {image: kept for image, _ in camera.history}
        self._jpeg_quality = jpeg_quality
        super().__init__(contract, image_hint, page_lock=False)

    def compressed(self, camera: str, message: bytes, now_ns: int) -> None:
        """Take a serialized sensor_msgs/CompressedImage, JPEG or PNG. Raises ValueError, with one sentence,
        if its header shows that it cannot be used."""
        with self._refusing(camera, now_ns):
            view = compressed_view(message)
            header = check_picture(view, self._most_pixels[camera])
            self._pictures[camera].append((view.stamp_ns, view.data.tobytes(), header))
            with self._pool.write(camera, view.stamp_ns, 1, 1):
                pass  # the synchroniser needs only its time
        self._came(camera, view.stamp_ns, now_ns)

    def encoded(self, now_ns: int, words: str | None = None) -> EncodedObservation | None:
        """Return the newest observation; None if there is no new one, and `waiting_for` says why. words:
        replaces the instruction, for a question."""
        observation = self.observe(now_ns, words)
        if observation is None:
            return None
        images: dict[str, bytes | np.ndarray] = {}
        stamps_ns: dict[str, int] = {}
        try:
            for camera in (p for p in self._contract.pictures if p.image in observation.images):
                stamp_ns = stamps_ns[camera.name] = observation.stamps_ns[camera.image]
                picture = self._picture(camera.name, stamp_ns)
                pixels = observation.images[camera.image]
                images[camera.name] = self._encoded(pixels) if picture is None else picture[1]
            if not observation.intact():
                self.waiting_for = "images were overwritten while they were taken: give the rings more slots"
                return None
        finally:
            self.observed()
        return EncodedObservation(
            images, stamps_ns, observation.state, observation.instruction, observation.stamp_ns
        )

    def _view(self, camera: Camera, picture: np.ndarray) -> np.ndarray:
        """The whole picture: the scheduler, which has the contract, crops and turns it."""
        return picture

    def _encoded(self, pixels: np.ndarray) -> bytes | np.ndarray:
        if self._jpeg_quality is None:
            return pixels.copy()
        return jpeg_of(pixels, self._jpeg_quality)

    def _picture(self, camera: str, stamp_ns: int) -> tuple[int, bytes, Header] | None:
        matches = [picture for picture in self._pictures.get(camera, ()) if picture[0] == stamp_ns]
        return matches[-1] if matches else None

    def _pixels(self, frame: Frame) -> np.ndarray | None:
        picture = self._picture(frame.camera, frame.stamp_ns)
        if picture is None:
            return super()._pixels(frame)
        pixels = cv2.imdecode(np.frombuffer(picture[1], np.uint8), cv2.IMREAD_REDUCED_COLOR_4)
        return None if pixels is None else np.asarray(pixels)[..., ::-1]

    def _size(self, frame: Frame) -> tuple[int, ...]:
        picture = self._picture(frame.camera, frame.stamp_ns)
        return super()._size(frame) if picture is None else (picture[2].height, picture[2].width)


def jpeg_of(pixels: np.ndarray, quality: int) -> bytes:
    """Encode uint8 [H, W, 3], RGB, as JPEG of a quality of 1 to 100. Deterministic for one version of
    OpenCV."""
    bgr = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
    _, data = cv2.imencode(".jpg", bgr, (cv2.IMWRITE_JPEG_QUALITY, quality))
    return data.tobytes()


_SENT, _SESSIONS = 64, 64


@dataclass(frozen=True)
class Seen:
    """An observation without its images. instruction: or the question. stamps_ns: by camera. state: float32
    [D], in the policy's units. session: id of the session that used it."""

    stamp_ns: int
    instruction: str
    stamps_ns: dict[str, int]
    state: np.ndarray
    session: str = ""


class Provenance:
    """The provenance of one robot's chunks. topics: image topic of each camera. own: the robot's own
    settings."""

    def __init__(self, topics: dict[str, str], own: dict[str, object]) -> None:
        self._topics, self._own = topics, own
        self._sent: OrderedDict[tuple[int, str], Seen] = OrderedDict()
        self._sessions: OrderedDict[str, str] = OrderedDict()

    def sent(self, seen: EncodedObservation) -> None:
        """Record an observation that was sent with a request."""
        words = seen.instruction
        self._sent[seen.stamp_ns, words] = Seen(seen.stamp_ns, words, dict(seen.stamps_ns), seen.state)
        while len(self._sent) > _SENT:
            self._sent.popitem(last=False)

    def told(self, session: Session) -> Session:
        """Record a session that a scheduler announced; return it with this robot's settings, cameras and
        topics. Raises ValueError, with one sentence, if its settings are malformed."""
        try:
            settings = json.loads(session.settings)
            replica = settings[REPLICA]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ValueError(
                f"fleet/session {session.id[:12]!r} has settings that name no {REPLICA}: "
                f"{session.settings[:80]!r}"
            ) from None
        self._sessions[str(replica)] = session.id
        while len(self._sessions) > _SESSIONS:
            self._sessions.popitem(last=False)
        return replace(
            session,
            settings=json.dumps({**settings, **self._own}, sort_keys=True),
            cameras=tuple(self._topics),
            topics=tuple(self._topics.values()),
        )

    def of(self, stamp_ns: int, words: str, replica: str) -> Seen | None:
        """Return what a chunk or answer with this stamp was made from; None if unknown. replica:
        "SCHEDULER/NAME"."""
        observed, session = self._sent.get((stamp_ns, words)), self._sessions.get(replica)
        return None if observed is None or session is None else replace(observed, session=session)
