"""Reports of the inference node: the topic `session`, and lines in /diagnostics about its engine and chunks.

`session` says what chunks are computed with; it is latched, for recorders. The checksum of gigabytes of
weights takes seconds that the robot need not wait for. So a separate thread computes it, and the session is
published once it is known, in any lifecycle state.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from diagnostic_msgs.msg import DiagnosticStatus

from vla_accel_msgs.msg import Session as SessionMessage
from vla_accel_ros.control.chunking.guidance import Guiding
from vla_accel_ros.engine.config import NO_PARTITION
from vla_accel_ros.engine.lanes.partitioned import Partitioned
from vla_accel_ros.engine.rules.overload import ACTIONS, LANGUAGE, NONE, VISION, Degradation
from vla_accel_ros.engine.session import Session
from vla_accel_ros.engine.streaming.loop import LoopStats
from vla_accel_ros.models.checkpoints.checksum import checksum
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.diagnostics import OK, WARN, status
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.running.lifecycle import ManagedNode
from vla_accel_ros.types import Chunk

GUIDED = ("guided", "trained")
GIVEN_UP = {
    NONE: "nothing is given up",
    LANGUAGE: "overloaded: text is paused, except for an occasional token",
    ACTIONS: "overloaded: text is paused, and a frame gets fewer chunks after its first",
    VISION: "overloaded: text is paused, a frame gets one chunk, and waits for that of the previous frame",
}
"""Sentences by the level of engine.rules.overload."""
_REMEMBERED = 50
"""Number of chunks whose executed actions are averaged."""


class SessionTopic:
    """Publishes the session of a node's engine once its checkpoint's checksum is known; closed with the
    node's release."""

    def __init__(self, node: ManagedNode, session: Session) -> None:
        self.session = session
        self._node, self._stop = node, threading.Event()
        self._made_ns = node.now_ns()
        self._publisher = node.create_publisher(SessionMessage, "session", qos.LATCHED)
        self._thread = threading.Thread(target=self._tell, name="session", daemon=True)
        self._thread.start()
        node.on_release(self._close)

    def _tell(self) -> None:
        try:
            checksum_hex = checksum(self.session.model, self._stop.is_set)
        except (OSError, ValueError) as error:
            self._node.get_logger().warning(f"a bag of this run will not identify its model: {error}")
            checksum_hex = ""
        if not self._stop.is_set():
            self.session = replace(self.session, checksum=checksum_hex)
            self._publisher.publish(convert.session_to_message(self.session, self._made_ns))

    def _close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._node.destroy_publisher(self._publisher)


class HorizonReport:
    """How much of the last chunks may be executed. A horizon that ends before its chunk is ready makes the
    robot stand still; such chunks are counted, with a warning. spec: the parameter `horizon`."""

    def __init__(self, spec: str) -> None:
        self._spec = spec
        self._executed: deque[int] = deque(maxlen=_REMEMBERED)
        self._made, self._past, self._newest_past = 0, 0, False

    def note(self, chunk: Chunk, now_ns: int) -> None:
        """Note a new chunk, which has its horizon. now_ns: by the ROS clock."""
        cut = chunk.executed < chunk.horizon
        self._newest_past = cut and chunk.due_ns(chunk.executed - 1) <= now_ns
        self._past += self._newest_past
        self._made += 1
        self._executed.append(chunk.executed)

    def status(self) -> DiagnosticStatus:
        """The line of diagnostics."""
        executed = tuple(self._executed)
        values = {
            "horizon": self._spec,
            "executed, newest [actions]": executed[-1] if executed else "none yet",
            "executed, mean [actions]": sum(executed) / len(executed) if executed else "none yet",
            "chunks": self._made,
            "past when made": self._past,
        }
        words = "chunks are executed as far as horizon says"
        if self._newest_past:
            words = "the newest chunk's horizon ended before it was made: give horizon more (+least:N)"
        return status("horizon", WARN if self._newest_past else OK, words, values)


def of_chunking(guiding: Guiding, step_dt_s: float) -> DiagnosticStatus:
    """The measured delay, how many chunks were guided, and why others were not."""
    chunking = guiding.chunking
    steps, counts = chunking.delay_steps(step_dt_s), dict(chunking.counts)
    values = {
        "delay [s]": "not measured yet" if chunking.delay_s is None else chunking.delay_s,
        "delay [steps]": "not measured yet" if steps is None else steps,
        **{how: counts.get(how, 0) for how in GUIDED},
        **{f"not guided: {reason}": n for reason, n in counts.items() if reason not in GUIDED},
    }
    words = guiding.conflict or (f"not guided: {guiding.why_not}" if guiding.why_not else "guided")
    return status("chunking", WARN if guiding.conflict else OK, words, values)


def of_overload(now: Degradation) -> DiagnosticStatus:
    """What the engine gives up under overload, now and so far."""
    values = {
        "level": now.level,
        "rungs taken": now.raised,
        "text paused [s]": now.paused_s,
        "further chunks given up": sum(now.chunks.values()),
        "frames skipped": sum(now.frames.values()),
    }
    return status("overload", OK if now.level == NONE else WARN, GIVEN_UP[now.level], values)


def of_partition(partitioned: Partitioned) -> DiagnosticStatus:
    """The set of multiprocessors that only actions use, and why."""
    values: dict[str, object] = {
        "partition": partitioned.split or NO_PARTITION,
        "splits by load": ", ".join(map(str, partitioned.sets)) or "no",
        "switched": partitioned.switched,
    }
    for measured in partitioned.measured:
        name = measured.split or "without"
        values[f"frame, {name} [ms]"] = measured.frame_s * 1e3
        values[f"action p99, {name} [ms]"] = measured.action_s * 1e3
    words = partitioned.reason or "no partition was requested"
    return status("partition", WARN if partitioned.missing else OK, words, values)


def of_loops(loops: Iterable[LoopStats]) -> list[DiagnosticStatus]:
    """Rates, times and misses of the loops."""
    return [
        status(
            f"loop {stats.name}",
            OK,
            f"{stats.measured_hz:.1f} Hz, p99 {stats.p99_s * 1e3:.0f} ms",
            {
                "target [Hz]": stats.target_hz,
                "measured [Hz]": stats.measured_hz,
                "p50 [ms]": stats.p50_s * 1e3,
                "p99 [ms]": stats.p99_s * 1e3,
                "runs": stats.runs,
                "idle": stats.idle,
                "deadline misses": stats.misses,
                "given up": stats.given_up,
            },
        )
        for stats in loops
    ]
