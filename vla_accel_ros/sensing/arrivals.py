"""How streams arrive (real rate, age, losses), and what a node reports about them.

The common fault of a camera under ROS 2 is not silence but starvation: with the stock Fast DDS transport a
frame is larger than the shared-memory segment and arrives once a second. So the measured rate is compared
with the expected one, and the warning names the fix: the Fast DDS profile if it is missing and frames
arrive, the driver if none does. Time is given, never read.

A chunk says when its images were taken, but nothing about images that came while it was computed. A watchdog
that saw cameras only through chunks would take a slow model for a silent camera. So inference also reports
what it has received of every stream, and how fast it makes chunks (`Inputs`, the topic `inputs`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from vla_accel_ros.contract.contract import Contract

IMAGE_HINT = (
    "start the node with the Fast DDS profile config/fastdds.xml (FASTDDS_DEFAULT_PROFILES_FILE, "
    "FASTRTPS_DEFAULT_PROFILES_FILE of Fast DDS 2), whose shared-memory segment holds a whole image"
)
PROFILED_HINT = "look at its driver's rate, and at the load and the network between its machine and this one"
"""The hint if the profile is in use already, or the middleware is another one."""
RING_HINT = "look at the node that writes the ring; its handles are small and seldom lost on the way"
_SLOW = 0.8
_BACK_NS = 500_000_000
_WINDOW_NS = 2_000_000_000
"""Window over which a rate is measured."""


class StreamMonitor:
    """Arrivals of one stream.

    expected_hz: its rate by the contract. name, hint, topic: for the warning; the hint says what to do when
    the rate is too low.
    """

    def __init__(self, expected_hz: float, name: str = "stream", hint: str = "", topic: str = ""):
        self.name, self.expected_hz = name, expected_hz
        self.drops = 0
        self._hint, self._topic = hint, topic
        self._arrivals: deque[int] = deque()
        self._since_ns: int | None = None
        self._stamp_ns: int | None = None

    def seen(self, stamp_ns: int, now_ns: int) -> None:
        """A message arrived. stamp_ns: its own time; gaps between stamps are counted as drops. One that is a
        little older than the newest comes from another publisher, or out of order."""
        self._start(now_ns)
        if self._stamp_ns is not None and stamp_ns > self._stamp_ns:
            periods = (stamp_ns - self._stamp_ns) * 1e-9 * self.expected_hz
            self.drops += max(round(periods) - 1, 0)
        if self._stamp_ns is None or not 0 < self._stamp_ns - stamp_ns < _BACK_NS:
            self._stamp_ns = stamp_ns
        self._arrivals.append(now_ns)
        self._forget(now_ns)

    def rate_hz(self, now_ns: int) -> float:
        """Messages a second over the window, or over the time since the first call if that is shorter."""
        self._start(now_ns)
        self._forget(now_ns)
        span_ns = min(now_ns - (self._since_ns or 0), _WINDOW_NS)
        return len(self._arrivals) / (span_ns * 1e-9) if span_ns > 0 else 0.0

    def age_s(self, now_ns: int) -> float | None:
        """Age of the newest message by its stamp; None before the first."""
        return None if self._stamp_ns is None else (now_ns - self._stamp_ns) * 1e-9

    def silent_s(self, now_ns: int) -> float:
        """Seconds since the last message, or since the first call."""
        self._start(now_ns)
        last_ns = self._arrivals[-1] if self._arrivals else self._since_ns or now_ns
        return (now_ns - last_ns) * 1e-9

    def silence(self, silent_s: float) -> str:
        """The sentence of a stream that has sent nothing for so long."""
        where = f" on {self._topic}" if self._topic else ""
        return f"{self.name} has sent nothing{where} for {silent_s:g} s: look at its driver and topic"

    def warning(self, now_ns: int) -> str | None:
        """A sentence if the stream arrives at less than 0.8 of its rate; None before a whole window was
        watched."""
        rate_hz = self.rate_hz(now_ns)
        if self._since_ns is None or now_ns - self._since_ns < _WINDOW_NS:
            return None
        if rate_hz >= _SLOW * self.expected_hz:
            return None
        if not rate_hz:
            return self.silence(_WINDOW_NS * 1e-9)
        slowness = f"{self.name} arrives at {rate_hz:.1f} Hz instead of {self.expected_hz:g} Hz"
        return f"{slowness}: {self._hint}" if self._hint else slowness

    def _start(self, now_ns: int) -> None:
        """Start to watch, or start again when time has gone backwards."""
        newest = self._arrivals[-1] if self._arrivals else self._since_ns
        if newest is None or now_ns < newest:
            self._since_ns, self._stamp_ns = now_ns, None
            self._arrivals.clear()

    def _forget(self, now_ns: int) -> None:
        while self._arrivals and self._arrivals[0] <= now_ns - _WINDOW_NS:
            self._arrivals.popleft()


def make_monitors(contract: Contract, image_hint: str) -> dict[str, StreamMonitor]:
    """A monitor of each stream. image_hint: what to do if a camera that is not a ring is too slow."""
    monitors = {
        camera.name: StreamMonitor(
            camera.rate_hz,
            f"camera {camera.name}",
            RING_HINT if camera.transport == "ring" else image_hint,
            topic=camera.topic,
        )
        for camera in contract.cameras
    }
    states = contract.joint_states
    monitors["joint_states"] = StreamMonitor(states.rate_hz, "joint_states", topic=states.topic)
    for stream, tf in contract.tf.items():  # the contract knows no rate
        monitors[stream] = StreamMonitor(1.0 / tf.max_age_s, stream, topic="/tf")
    return monitors


def wrong_stamp(camera: str, stamp_ns: int, now_ns: int, max_age_s: float) -> str:
    """A sentence if the stamp of a camera's image is 0 or in the future by more than its age limit, else
    empty."""
    ahead_s = (stamp_ns - now_ns) * 1e-9
    if not stamp_ns and -ahead_s > max_age_s:
        return f"images of camera {camera} have no stamp: its driver must stamp them with the time of capture"
    if ahead_s > max_age_s:
        return (
            f"camera {camera} stamps its images {ahead_s:.3f} s in the future: synchronise the clocks of "
            "its machine and this one or, with use_sim_time, publish /clock"
        )
    return ""


@dataclass(frozen=True)
class Inputs:
    """See msg/Inputs.msg. Streams are named as the watchdog names them: `camera/<name>`, `tf/<hand>`,
    `joint_states`.

    told_ns: time of the report. stamps_ns: the newest usable sample of each stream; streams without one are
    left out. problems: a sentence for each stream that has one. waiting_for: why no chunk is being made, or
    empty. chunks_per_s, chunks_per_s_needed: 0 if unknown; the second is infinite where no pace is enough.
    busy: why chunks are made too slowly, if that is not the model; not in the message.
    """

    told_ns: int
    stamps_ns: Mapping[str, int] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    waiting_for: str = ""
    chunks_per_s: float = 0.0
    chunks_per_s_needed: float = 0.0
    busy: str = ""

    @property
    def slow(self) -> str:
        """A sentence if the model is too slow for the contract, else empty."""
        if not self.chunks_per_s or self.chunks_per_s >= self.chunks_per_s_needed:
            return ""
        pace = f"the model makes {self.chunks_per_s:.1f} chunks/s"
        if math.isinf(self.chunks_per_s_needed):
            return f"{pace}, each older than chunk.max_age_s on arrival: raise it, or make the model faster"
        return (
            f"{pace}; this contract needs {self.chunks_per_s_needed:.1f}: "
            "raise chunk.max_age_s, or make the model faster"
        )


@dataclass(frozen=True)
class Arrival:
    """One message. stamp_ns: its own time. now_ns: ROS time at the receiver. steady_s: time of arrival by a
    clock that never jumps. size: of the message in bytes, 0 where that does not matter."""

    stamp_ns: int
    now_ns: int
    steady_s: float
    size: int = 0


@dataclass
class Watched:
    """A few seconds of every stream of a contract.

    ended_s: when watching ended, on the clock of steady_s. arrivals: by stream, `camera/<name>` and
    `joint_states`, in order. refused: sentences about unusable messages, by stream. mismatches: sentences
    about cameras whose CameraInfo has another size. joints: the newest position of every named joint.
    observations: how many could be made from all streams. waiting_for: what the last attempt lacked.
    """

    ended_s: float = 0.0
    arrivals: dict[str, list[Arrival]] = field(default_factory=dict)
    refused: dict[str, list[str]] = field(default_factory=dict)
    mismatches: list[str] = field(default_factory=list)
    joints: dict[str, float] = field(default_factory=dict)
    observations: int = 0
    waiting_for: str = ""
