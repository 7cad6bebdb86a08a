"""The topic `inputs`, and its line in /diagnostics: what is received, and how fast chunks are made.

The node's own thread, which otherwise only receives messages, publishes it at a fixed rate. The engine has
other threads, so a model that takes seconds does not silence it. Watchdogs of cameras use this topic, not
chunks. The trajectory node logs why the robot stands, from this too; while none does, the log here says what
keeps chunks from being made, or that a model is too slow. A node whose chunks a fleet makes publishes the
same; nothing here imports torch.
"""

from __future__ import annotations

from diagnostic_msgs.msg import DiagnosticStatus

from vla_accel_msgs.msg import Inputs as InputsMessage
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.chunking.pace import ChunkPace
from vla_accel_ros.control.following.reasons import unnumbered
from vla_accel_ros.control.following.watchdog import Late
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.diagnostics import OK, WARN, status
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.running.host import Host
from vla_accel_ros.nodes.running.lifecycle import ManagedNode
from vla_accel_ros.nodes.throttled import AGAIN_S, Reasons, Throttled
from vla_accel_ros.sensing.arrivals import Inputs
from vla_accel_ros.sensing.ingest import Ingest

PERIOD_S = 0.05


class InputsTopic:
    """Publishes the state of an Ingest and a ChunkPace until the node's release.

    failed: set by the node: the sentence of an error that prevented a chunk, and "" after a chunk. detail:
    the part of that sentence that changes every time. stands: set by the node: whether the trajectory node
    has reported why the robot stands. busy: why chunks are made too slowly, if that is not the model.
    """

    def __init__(self, node: ManagedNode, contract: Contract, ingest: Ingest, pace: ChunkPace) -> None:
        self._node, self._ingest, self._pace = node, ingest, pace
        self._streams = {f"camera/{camera.name}": camera.name for camera in contract.cameras}
        self._streams["joint_states"] = "joint_states"
        self._reasons, self._slow = Reasons(node), Throttled(node, AGAIN_S)
        self.failed = self.detail = self.busy = ""
        self._host = Host()
        self.stands = False
        self._publisher = node.output(InputsMessage, "inputs", qos.REPORT)
        # Often enough that the delay of the message itself never reaches a limit.
        node.every(min(PERIOD_S, min(contract.max_ages_s.values()) / 4), self._tell)

    def now(self) -> Inputs:
        """The present report."""
        now_ns = self._node.now_ns()
        made, needed = self._pace.per_s(now_ns)
        self.busy = self._host.busy if made < needed else ""
        problems = {stream: self._ingest.problem(name, now_ns) for stream, name in self._streams.items()}
        return Inputs(
            told_ns=now_ns,
            stamps_ns=self._ingest.stamps_ns(),
            problems={stream: problem for stream, problem in problems.items() if problem},
            waiting_for=self._ingest.waiting_for or self.failed + self.detail,
            chunks_per_s=made,
            chunks_per_s_needed=0.0 if self.busy else needed,
        )

    def promise(self) -> None:
        """Log, at activation, the pace that the warm-up suggests, and the one that the contract needs."""
        inputs, log = self.now(), self._node.get_logger()
        if inputs.slow or self.busy:
            log.warning(self.busy or inputs.slow)
        else:
            made, needed = inputs.chunks_per_s, inputs.chunks_per_s_needed
            log.info(f"the model makes {made:.1f} chunks/s; this contract needs {needed:.1f}")

    def warn(self) -> None:
        """Log what chunks wait for, and a model that is too slow, unless the trajectory node tells it."""
        inputs = self.now()
        if self.busy:
            self._slow.warning(self.busy)
        if self.stands and self._node.count_publishers("motion"):
            return
        waits, reasons = inputs.waiting_for, dict[str, str]()
        for stream, problem in inputs.problems.items():
            if not Late(stream, None, 0.0).named_in(inputs.waiting_for):
                reasons[stream] = problem
            elif problem != inputs.waiting_for:
                waits = f"{waits}; {problem}"
        self._reasons.log("no chunks are made", {unnumbered(waits): waits} | reasons if waits else {})
        if inputs.slow:
            self._slow.warning(inputs.slow)

    def _tell(self) -> None:
        self._publisher.publish(convert.inputs_to_message(self.now(), tuple(self._streams)))


def of_observations(
    inputs: Inputs, instruction: str, newest_chunk_ns: int | None, errors: int, busy: str
) -> DiagnosticStatus:
    """What chunks wait for, the age of the newest, and whether they are made fast enough. busy: see
    InputsTopic."""
    wrong = inputs.waiting_for or busy or inputs.slow
    values = {
        "chunk age [s]": "none yet" if newest_chunk_ns is None else (inputs.told_ns - newest_chunk_ns) * 1e-9,
        "chunks made [1/s]": inputs.chunks_per_s,
        "chunks needed [1/s]": inputs.chunks_per_s_needed,
        "instruction": instruction,
        "errors": errors,
    }
    return status("inference", WARN if wrong else OK, wrong or "running", values)
