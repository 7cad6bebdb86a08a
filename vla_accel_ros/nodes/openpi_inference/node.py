"""The lifecycle node `inference` whose chunks come from anybody's policy server, by openpi's protocol.

For all other nodes it is the inference node (nodes/inference/observing.py). A thread takes the newest
observation, asks (wire/asking.py) and sends the chunk. A server that is late, gone, wrong or another than
before is named as what chunks wait for; the arm comes to rest at the end of its last chunk, and the thread
tries again. Chunks of a server cannot be computed again from a bag.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

from diagnostic_msgs.msg import DiagnosticStatus

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.chunking.guidance import Execution
from vla_accel_ros.nodes.declare import value
from vla_accel_ros.nodes.diagnostics import OK, WARN, status
from vla_accel_ros.nodes.inference.observing import ObservingNode
from vla_accel_ros.nodes.params.fleet import OPENPI
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.nodes.running.process import run
from vla_accel_ros.nodes.throttled import AGAIN_S, Throttled
from vla_accel_ros.sensing.ingest import Ingest
from vla_accel_ros.sensing.inputs import RobotInputs
from vla_accel_ros.types import Torn

AGAIN_AFTER_S = (0.1, 2.0)
"""First and longest pause after a failure; it doubles from one to the next."""


class OpenpiInferenceNode(ObservingNode):
    """The node inference, with a policy server; see the module docstring and nodes/params/server.py."""

    def __init__(self) -> None:
        super().__init__()
        self._failure, self._conflict = Throttled(self, AGAIN_S), Throttled(self, AGAIN_S)
        self._stopping = threading.Event()

    def configure(self) -> None:
        try:
            from vla_accel_ros.wire.asking import Asking
            from vla_accel_ros.wire.client import PolicyClient
            from vla_accel_ros.wire.continuing import Continuing
        except ImportError as error:
            raise ValueError(
                f"engine: {OPENPI} needs {error.name}: pip install msgpack 'websockets>=13'"
            ) from error
        contract = Contract.load(value(self, "contract") or demo_contract())
        file = value(self, "server_token_file")
        token = Path(file).read_text().strip() if file else ""
        self._client = PolicyClient(value(self, "server_url"), token, contract.keys.dialect)
        continuing = Continuing(value(self, "rtc_mask_horizon"), value(self, "rtc_delivery_s"))
        self._asking = Asking(contract, self._client, value(self, "server_deadline_s"), continuing)
        self._period_s = 1.0 / value(self, "server_hz")
        self._answer_s = 0.0
        self._ingest = Ingest(contract, self.image_hint, page_lock=False)
        self.restore_instruction()
        self.observe_robot(contract, RobotInputs(contract, self._ingest, self.instruction))

    def activate(self) -> None:
        super().activate()
        self._client.forget()
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, name="policy server", daemon=True)
        self._thread.start()

    def deactivate(self) -> None:
        self._stopping.set()
        self._client.close()  # ends a wait for an answer
        self._thread.join()
        super().deactivate()

    def release(self) -> None:
        super().release()
        for name in ("_client", "_asking", "_ingest"):
            self.__dict__.pop(name, None)

    def executed(self, execution: Execution) -> None:
        as_they_are = execution.mode == "rtc"
        if self._asking.continuing is not None:
            running = as_they_are and execution.state == "running"
            self._asking.continuing.executed(running, execution.lead_s, execution.beginning)
        elif as_they_are:
            self._conflict.warning(
                "the trajectory node runs in mode rtc, which does not crossfade, but this server is not "
                "asked to continue chunks: set mode to blend, or, if it can, keys: continues: true in the "
                "contract"
            )

    def chunk_statuses(self) -> Sequence[DiagnosticStatus]:
        problem = self.inputs.failed
        values = {
            "server": self._client.url,
            "connections": self._client.connections,
            "answer, last [s]": self._answer_s,
        }
        return [status("policy server", WARN if problem else OK, problem or "answers", values)]

    def _run(self) -> None:
        pause_s, due_s = AGAIN_AFTER_S[0], time.monotonic()
        while not self._stopping.wait(max(0.0, due_s - time.monotonic())):
            self._ingest.sets.wait(self._period_s, self._stopping.is_set)
            observation = self.inputs.observe(self.now_ns())
            begun_s = time.monotonic()
            due_s = begun_s + self._period_s
            if observation is None:
                continue
            try:
                chunk = self._asking.chunk(observation, self.now_ns)
            except Torn:
                continue
            except (OSError, RuntimeError, ValueError) as error:
                if self._stopping.is_set():
                    return
                self.inputs.fail(f"no chunk from the policy server: {error}")
                self._failure.error(self.inputs.failed)
                due_s, pause_s = begun_s + pause_s, min(2 * pause_s, AGAIN_AFTER_S[1])
                continue
            self._answer_s, pause_s = time.monotonic() - begun_s, AGAIN_AFTER_S[0]
            if not self._stopping.is_set():
                self.send(chunk, self._answer_s)


def main(args: Sequence[str] | None = None) -> int:
    """Entry point of `ros2 run vla_accel_ros openpi_inference`."""
    return run(OpenpiInferenceNode, args)
