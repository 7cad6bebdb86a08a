"""A scene of a running robot: takes what its topics have when somebody looks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from vla_accel_ros.nodes.clients.viewer import Viewer
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.sensing.ingest import Ingest
from vla_accel_ros.tools.bags import COMPRESSED, IMAGE, TRAJECTORY
from vla_accel_ros.tools.look.scene import Scene

MOST = 1200
"""Entries kept of each stream: two minutes at ten polls a second."""
DEPTHS = {TRAJECTORY: 1, "diagnostic_msgs/msg/DiagnosticArray": 10}
"""Of queues, else 2: of several commands within a poll the newest is drawn, of joint states two."""
LATCHED = ("motion", "instruction")
WHOLE = 2**31


class Live:
    """The scene of a running robot. Raises TimeoutError if none says its session within timeout_s."""

    live = True

    def __init__(self, viewer: Viewer, timeout_s: float) -> None:
        self._viewer = viewer
        viewer.await_session(timeout_s)
        self._ingest: Ingest | None = None
        self._open()

    def refresh(self) -> None:
        """Take what has arrived."""
        self._viewer.poll()
        self.last_ns = self._viewer.now_ns
        if self._viewer.session is not self.scene.session:
            self._open()

    def image(self, camera: str, at_ns: int) -> tuple[int, np.ndarray] | None:
        """A camera's newest picture uint8 [H, W, 3], and its stamp."""
        assert self._ingest is not None
        pixels = self._ingest.picture(camera, WHOLE)
        stamp_ns = self._ingest.stamps_ns().get(f"camera/{camera}")
        return None if pixels is None or stamp_ns is None else (stamp_ns, pixels)

    def _open(self) -> None:
        """Subscribe by the robot's session, a new one if it was configured anew."""
        viewer = self._viewer
        assert viewer.session is not None
        viewer.unsubscribe()
        if self._ingest is not None:
            self._ingest.close()
        self.scene = scene = Scene(viewer.session, viewer.namespace, MOST)
        self._ingest = ingest = Ingest(scene.contract, copy=True, page_lock=False)
        self.first_ns = self.last_ns = viewer.now_ns
        for topic, (kind, _) in scene.topics.items():
            viewer.subscribe(
                topic, kind, partial(scene.take, topic), DEPTHS.get(kind, 2), latched=topic in LATCHED
            )
        for camera in scene.contract.cameras:
            read, kind = TRANSPORTS[camera.transport]
            take = partial(self._see, partial(read, ingest), camera.name)
            viewer.subscribe(camera.topic, kind, take, raw=camera.transport != "ring")

    def _see(self, take: Callable[[str, Any, int], None], camera: str, message: Any, now_ns: int) -> None:
        try:
            take(camera, message, now_ns)
        except ValueError as refusal:
            self.scene.unreadable = f"camera {camera}: {refusal}"


def _handle(ingest: Ingest, camera: str, message: Any, now_ns: int) -> None:
    ingest.handle(camera, convert.handle_from_message(message), now_ns)


TRANSPORTS: Mapping[str, tuple[Callable[..., None], str]] = {
    "raw": (Ingest.image, IMAGE),
    "compressed": (Ingest.compressed, COMPRESSED),
    "ring": (_handle, "vla_accel_msgs/msg/FrameHandle"),
}
"""What takes a camera's messages, and their type."""
