"""A scene from a bag: its small messages in memory, and where its pictures lie.

Pictures are read again when they are shown, so a bag may be larger than memory. Of a bag whose clock was set,
the last part is shown.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from vla_accel_ros.engine.session import Session
from vla_accel_ros.recording.jumps import numbered
from vla_accel_ros.recording.reader import Bag, Place
from vla_accel_ros.recording.robots import SESSION, chosen_robot, topic_of
from vla_accel_ros.tools.bags import (
    COMPRESSED,
    IMAGE,
    image_stamp_ns,
    image_topic,
    picture,
    stamp_ns,
)
from vla_accel_ros.tools.look.scene import Scene, Track

EVERY = 20_000
"""Messages between two reports of progress."""


class Recorded:
    """The scene of one robot in a bag. namespace: as of `chosen_robot`. say: gets sentences about progress.

    Raises ValueError if it is no bag, is damaged, or has no session of that robot; OSError if it cannot be
    read.
    """

    live = False
    first_ns: int
    last_ns: int

    def __init__(
        self, path: Path, namespace: str = "", say: Callable[[str], object] = lambda _: None
    ) -> None:
        self._bag = bag = Bag(path)
        bag.survey()
        self._robot = chosen_robot(bag, namespace)
        sessions = [e for e in bag.entries((SESSION,)) if e.topic == f"{self._robot}/session"]
        self._session = Session.from_message(bag.decode(sessions[-1]))
        self._begin()
        part = 0
        for count, (number, _, entry) in enumerate(numbered(bag), 1):
            if number > part:
                part = number
                self._begin()
            self.first_ns = min(self.first_ns or entry.log_ns, entry.log_ns)
            self.last_ns = max(self.last_ns, entry.log_ns)
            if (track := self._images.get(entry.topic)) is not None and entry.type in (IMAGE, COMPRESSED):
                try:
                    track.add(entry.log_ns, (image_stamp_ns(entry), entry.place))
                except ValueError as error:
                    self.scene.unreadable = f"{entry.topic}: {error}"
            elif (topic := self._topics.get(entry.topic)) is not None:
                try:
                    self.scene.take(topic, bag.decode(entry), entry.log_ns)
                except ValueError as error:
                    self.scene.unreadable = str(error)
            if count % EVERY == 0:
                say(f"{path}: {count} messages read")

    def refresh(self) -> None:
        """Nothing new comes."""

    def image(self, camera: str, at_ns: int) -> tuple[int, np.ndarray] | None:
        """A camera's picture uint8 [H, W, 3] and its stamp: of the newest observation then, or the newest
        without one. Raises ValueError if it cannot be read."""
        track = self._images[self._cameras[camera]]
        newest = track.at(at_ns)
        frame = self.scene.observed.at(at_ns)
        if frame is not None and camera in frame.cameras:
            stamp = stamp_ns(frame.stamps[list(frame.cameras).index(camera)])
            observed = (entry for entry in reversed(track.last(60, at_ns)) if entry[0] == stamp)
            newest = next(observed, newest)
        return None if newest is None else (newest[0], picture(self._bag.again(newest[1])))

    def _begin(self) -> None:
        """Forget everything: the first message, or the clock was set."""
        self.scene = Scene(self._session, self._robot)
        self.first_ns = self.last_ns = 0
        bag, robot = self._bag, self._robot
        names = dict(zip(self._session.cameras, self._session.topics))
        self._cameras: dict[str, str] = {}
        for camera in self.scene.contract.cameras:
            topic = names.get(camera.name) or f"{robot}/{camera.topic}"
            self._cameras[camera.name] = image_topic(bag, topic)
        self._images: dict[str, Track[tuple[int, Place]]] = {
            topic: Track() for topic in self._cameras.values()
        }
        contract = self.scene.contract
        remapped = {contract.joint_states.topic, *(c.topic for c in contract.controllers)}
        self._topics: dict[str, str] = {}
        for name, (kind, _) in self.scene.topics.items():
            topic = name if name.startswith("/") else f"{robot}/{name}"
            self._topics[topic_of(bag, robot, name, kind) if name in remapped else topic] = name
