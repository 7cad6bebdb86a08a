"""How fast a stream really arrives, how old it is, and what it lost.

The common fault of a camera under ROS 2 is not silence but starvation: with the stock Fast DDS transport a
frame is larger than the shared-memory segment and arrives once a second. So the measured rate is compared
with the expected one and the sentence that says so names the mend: the profile where it is missing and frames
come, the driver where none does. Time is given, never read.
"""

from __future__ import annotations

from collections import deque

IMAGE_HINT = (
    "start the node with the Fast DDS profile config/fastdds.xml (FASTDDS_DEFAULT_PROFILES_FILE, "
    "FASTRTPS_DEFAULT_PROFILES_FILE on Humble), whose shared-memory segment holds a whole image"
)
PROFILED_HINT = "look at its driver's rate, and at the load and the network between its machine and this one"
"""Where the profile is there already, or another middleware."""
RING_HINT = "look at the node that writes the ring, for its handles are small and seldom lost on the way"
_SLOW = 0.8


class StreamMonitor:
    """Arrivals of one stream.

    expected_hz: its rate by the contract. name, hint, topic: for the warning; the hint is what to do when too
    little comes. window_s: time over which the rate is measured.
    """

    def __init__(
        self,
        expected_hz: float,
        name: str = "stream",
        hint: str = "",
        window_s: float = 2.0,
        topic: str = "",
    ):
        if not (expected_hz > 0 and window_s > 0):
            raise ValueError(f"expected_hz = {expected_hz} and window_s = {window_s} must be above zero")
        self.name, self.expected_hz = name, expected_hz
        self.drops = 0
        self._hint, self._topic, self._window_ns = hint, topic, round(window_s * 1e9)
        self._arrivals: deque[int] = deque()
        self._since_ns: int | None = None
        self._stamp_ns: int | None = None

    def seen(self, stamp_ns: int, now_ns: int) -> None:
        """A message arrived. stamp_ns: its own time, whose gaps tell the drops."""
        self._start(now_ns)
        if self._stamp_ns is not None and stamp_ns > self._stamp_ns:
            periods = (stamp_ns - self._stamp_ns) * 1e-9 * self.expected_hz
            self.drops += max(round(periods) - 1, 0)
        self._stamp_ns = stamp_ns
        self._arrivals.append(now_ns)
        self._forget(now_ns)

    def rate_hz(self, now_ns: int) -> float:
        """Messages a second over the window, or over the time since the first look when that is shorter."""
        self._start(now_ns)
        self._forget(now_ns)
        span_ns = min(now_ns - (self._since_ns or 0), self._window_ns)
        return len(self._arrivals) / (span_ns * 1e-9) if span_ns > 0 else 0.0

    def age_s(self, now_ns: int) -> float | None:
        """Age of the newest message by its stamp, None before the first."""
        return None if self._stamp_ns is None else (now_ns - self._stamp_ns) * 1e-9

    def warning(self, now_ns: int) -> str | None:
        """A sentence when the stream arrives at less than 0.8 of its rate, once a window has been watched."""
        rate_hz = self.rate_hz(now_ns)
        if self._since_ns is None or now_ns - self._since_ns < self._window_ns:
            return None
        if rate_hz >= _SLOW * self.expected_hz:
            return None
        if not rate_hz:
            where = f" on {self._topic}" if self._topic else ""
            silent_s = self._window_ns * 1e-9
            return f"{self.name} has sent nothing{where} for {silent_s:g} s: look at its driver and topic"
        sentence = f"{self.name} arrives at {rate_hz:.1f} Hz instead of {self.expected_hz:g} Hz"
        return f"{sentence}: {self._hint}" if self._hint else sentence

    def _start(self, now_ns: int) -> None:
        """Begin to watch, or begin again when time has gone backwards."""
        newest = self._arrivals[-1] if self._arrivals else self._since_ns
        if newest is None or now_ns < newest:
            self._since_ns, self._stamp_ns = now_ns, None
            self._arrivals.clear()

    def _forget(self, now_ns: int) -> None:
        while self._arrivals and self._arrivals[0] <= now_ns - self._window_ns:
            self._arrivals.popleft()
