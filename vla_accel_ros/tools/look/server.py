"""Serves the page and its moments on this machine alone: to look from another one, use `ssh -L`.

The page asks for one moment after another, so a slow browser or network makes a slow page and no queue.
Nothing is computed while nobody looks.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from vla_accel_ros.tools.look.pictures import NetworkPictures, data_url, smaller
from vla_accel_ros.tools.look.scene import Scene
from vla_accel_ros.tools.pages import server_of

PAGE = Path(__file__).parent / "page.html"
OFTEN_S = 0.05
"""Live moments are not made more often: several pages share one."""


class Source(Protocol):
    """A live robot or a bag. first_ns, last_ns: the times that there are moments of."""

    live: bool
    scene: Scene
    first_ns: int
    last_ns: int

    def refresh(self) -> None: ...
    def image(self, camera: str, at_ns: int) -> tuple[int, np.ndarray] | None: ...


class Look:
    """What the page shows, from a source; any thread may ask."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._lock = threading.Lock()
        self._pictures = NetworkPictures(source.scene.session)
        self._session = source.scene.session
        self._newest: tuple[float, bytes] = (0.0, b"")

    def moment(self, at_s: float | None = None, exact: bool = True) -> dict[str, Any]:
        """Everything at a time, in seconds after the source's first; None for the newest. exact: pictures
        without loss."""
        with self._lock:
            source = self.source
            source.refresh()
            if source.scene.session is not self._session:
                self._session = source.scene.session
                self._pictures = NetworkPictures(self._session)
            at_ns = source.last_ns
            if at_s is not None and not source.live:
                at_ns = min(max(source.first_ns + round(at_s * 1e9), source.first_ns), source.last_ns)
            return {
                **source.scene.moment(at_ns),
                "robot": source.scene.robot(),
                "live": source.live,
                "at_ns": str(at_ns),
                "at_s": (at_ns - source.first_ns) * 1e-9,
                "length_s": (source.last_ns - source.first_ns) * 1e-9,
                "cameras": [self._camera(camera, at_ns, exact) for camera in source.scene.contract.cameras],
            }

    def body(self, at_s: float | None, exact: bool) -> bytes:
        """A moment as JSON."""
        ready_s, body = self._newest
        if at_s is not None or not self.source.live or time.monotonic() - ready_s > OFTEN_S:
            body = json.dumps(self.moment(at_s, exact), allow_nan=False).encode()
            self._newest = time.monotonic(), body
        return body

    def _camera(self, camera: Any, at_ns: int, exact: bool) -> dict[str, Any]:
        shown = {
            "name": camera.name,
            "image": camera.image,
            "topic": camera.topic,
            "age_s": None,
            "problem": "",
        }
        try:
            picture = self.source.image(camera.name, at_ns)
        except ValueError as error:
            return {**shown, "problem": str(error)}
        if picture is None:
            return {**shown, "problem": f"no picture of {camera.topic} yet"}
        stamp_ns, pixels = picture
        network = self._pictures.of(camera, pixels)
        return {
            **shown,
            "age_s": (at_ns - stamp_ns) * 1e-9,
            "size": [pixels.shape[1], pixels.shape[0]],
            "camera": data_url(smaller(pixels), False),
            "network": data_url(network, exact),
            "network_size": [network.shape[1], network.shape[0]],
            "exact": bool(self._pictures.size),
        }


def serve(look: Look, port: int) -> ThreadingHTTPServer:
    """A server of the page on 127.0.0.1, see pages.server_of."""

    def moment(query: Mapping[str, str]) -> bytes:
        return look.body(float(query["at"]) if "at" in query else None, "exact" in query)

    page = ("text/html", lambda _: PAGE.read_bytes())
    return server_of({"/": page, "/moment": ("application/json", moment)}, port)
