"""What inference tells of itself: the topics `inputs` and `session`, and its lines in /diagnostics.

`inputs`, what it receives and how fast it makes chunks, is told at a rate by the node's own thread, which
only takes in messages: the engine has others, so that a model that takes seconds silences nothing. Who
watches the cameras listens to this topic and not to chunks. What keeps chunks from being made is in the log
too, when it begins, and so is a model that is too slow.

`session`, what chunks are computed with, is latched, for whoever records them. The checksum of gigabytes of
weights takes seconds that the robot need not wait for: a thread of its own computes it, and the session is
told when it is there, whatever the lifecycle state.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace

from diagnostic_msgs.msg import DiagnosticStatus

from vla_accel_msgs.msg import Inputs as InputsMessage
from vla_accel_msgs.msg import Session as SessionMessage
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.chunking.guidance import Guiding
from vla_accel_ros.control.chunking.pace import ChunkPace
from vla_accel_ros.engine.config import NO_PARTITION
from vla_accel_ros.engine.lanes.partitioned import Partitioned
from vla_accel_ros.engine.loop import LoopStats
from vla_accel_ros.engine.policies.overload import ACTIONS, LANGUAGE, NONE, VISION, Degradation
from vla_accel_ros.engine.session import Session
from vla_accel_ros.models.checkpoints.checksum import checksum
from vla_accel_ros.nodes import convert, qos
from vla_accel_ros.nodes.diagnostics import OK, WARN, status
from vla_accel_ros.nodes.lifecycle import ManagedNode
from vla_accel_ros.sensing.arrivals import Inputs
from vla_accel_ros.sensing.ingest import Ingest

PERIOD_S = 0.05
GUIDED = ("guided", "trained")
GIVEN_UP = {
    NONE: "nothing is given up",
    LANGUAGE: "too much to do: text is paused, but for a token now and then",
    ACTIONS: "too much to do: text is paused, and a frame has fewer chunks after its first",
    VISION: "too much to do: text is paused, a frame has one chunk, and waits for that of the one before",
}
"""By the level of engine.policies.overload."""


class InputsTopic:
    """Tells of an Ingest and a ChunkPace until the node's release.

    failed: set by the node to the sentence of an error for which no chunk was made, and to "" by a chunk.
    """

    def __init__(self, node: ManagedNode, contract: Contract, ingest: Ingest, pace: ChunkPace) -> None:
        self._node, self._ingest, self._pace = node, ingest, pace
        self._streams = {f"camera/{camera.name}": camera.name for camera in contract.cameras}
        self._streams["joint_states"] = "joint_states"
        self._told = ""
        self.failed = ""
        self._publisher = node.output(InputsMessage, "inputs", qos.REPORT)
        # Often enough that the message itself ages nothing to a limit.
        node.every(min(PERIOD_S, min(contract.max_ages_s.values()) / 4), self._tell)

    def now(self) -> Inputs:
        """What there is to tell."""
        now_ns = self._node.now_ns()
        made, needed = self._pace.per_s(now_ns)
        problems = {stream: self._ingest.problem(name, now_ns) for stream, name in self._streams.items()}
        return Inputs(
            told_ns=now_ns,
            stamps_ns=self._ingest.stamps_ns(),
            problems={stream: problem for stream, problem in problems.items() if problem},
            waiting_for=self._ingest.waiting_for or self.failed,
            chunks_per_s=made,
            chunks_per_s_needed=needed,
        )

    def promise(self) -> None:
        """Log, at activation, the pace that the warm-up promises, and the one that the contract needs."""
        inputs, log = self.now(), self._node.get_logger()
        if inputs.slow:
            log.warning(inputs.slow)
        else:
            made, needed = inputs.chunks_per_s, inputs.chunks_per_s_needed
            log.info(f"the model makes {made:.1f} chunks/s; this contract needs {needed:.1f}")

    def warn(self) -> None:
        """Log what chunks wait for when it is another, and a model that is too slow."""
        inputs, log = self.now(), self._node.get_logger()
        if inputs.waiting_for != self._told:
            self._told = inputs.waiting_for
            if self._told:
                log.warning(f"no chunks are made: {self._told}")
        if inputs.slow:
            log.warning(inputs.slow, throttle_duration_sec=10.0)

    def _tell(self) -> None:
        self._publisher.publish(convert.inputs_to_message(self.now(), tuple(self._streams)))


class SessionTopic:
    """Tells the session of a node's engine, once its checkpoint's checksum is known, until the node's
    release."""

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
            found = checksum(self.session.model, self._stop.is_set)
        except (OSError, ValueError) as error:
            self._node.get_logger().warning(f"a bag of this run will not say which model it was: {error}")
            found = ""
        if not self._stop.is_set():
            self.session = replace(self.session, checksum=found)
            self._publisher.publish(convert.session_to_message(self.session, self._made_ns))

    def _close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._node.destroy_publisher(self._publisher)


def of_observations(
    inputs: Inputs, instruction: str, newest_chunk_ns: int | None, errors: int
) -> DiagnosticStatus:
    """What chunks are waiting for, how old the newest is, and whether they are made fast enough."""
    wrong = inputs.waiting_for or inputs.slow
    values = {
        "chunk age [s]": "none yet" if newest_chunk_ns is None else (inputs.told_ns - newest_chunk_ns) * 1e-9,
        "chunks made [1/s]": inputs.chunks_per_s,
        "chunks needed [1/s]": inputs.chunks_per_s_needed,
        "instruction": instruction,
        "errors": errors,
    }
    return status("inference", WARN if wrong else OK, wrong or "running", values)


def of_chunking(guiding: Guiding, step_dt_s: float) -> DiagnosticStatus:
    """The measured delay, and how many chunks were guided, or why they were not."""
    chunking = guiding.chunking
    steps, counts = chunking.delay_steps(step_dt_s), dict(chunking.counts)
    values = {
        "delay [s]": "not measured yet" if chunking.delay_s is None else chunking.delay_s,
        "delay [steps]": "not measured yet" if steps is None else steps,
        **{how: counts.get(how, 0) for how in GUIDED},
        **{f"not guided: {why}": n for why, n in counts.items() if why not in GUIDED},
    }
    sentence = guiding.conflict or (f"not guided: {guiding.why_not}" if guiding.why_not else "guided")
    return status("chunking", WARN if guiding.conflict else OK, sentence, values)


def of_overload(now: Degradation) -> DiagnosticStatus:
    """What the engine gives up for overload, and what it gave up so far."""
    values = {
        "level": now.level,
        "rungs taken": now.raised,
        "text paused [s]": now.paused_s,
        "further chunks given up": sum(now.chunks.values()),
        "frames skipped": sum(now.frames.values()),
    }
    return status("overload", OK if now.level == NONE else WARN, GIVEN_UP[now.level], values)


def of_partition(partitioned: Partitioned) -> DiagnosticStatus:
    """Which multiprocessors actions have to themselves, and why."""
    values: dict[str, object] = {
        "partition": partitioned.split or NO_PARTITION,
        "splits by load": ", ".join(map(str, partitioned.sets)) or "no",
        "switched": partitioned.switched,
    }
    for one in partitioned.measured:
        name = one.split or "without"
        values[f"frame, {name} [ms]"] = one.frame_beside_s * 1e3
        values[f"action p99, {name} [ms]"] = one.action_beside_s * 1e3
    said = partitioned.why or "nothing was asked for"
    return status("partition", WARN if partitioned.missing else OK, said, values)


def of_loops(loops: Iterable[LoopStats]) -> list[DiagnosticStatus]:
    """Rates, times and misses."""
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
