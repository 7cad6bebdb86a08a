"""Warns, in the log and in /diagnostics, when the live inputs are not like those in training.

The newest inputs are looked at once a second, so it costs nothing that chunks wait for, and also before there
is an instruction. See sensing/trained.py for what is compared.
"""

from __future__ import annotations

from collections.abc import Mapping

from diagnostic_msgs.msg import DiagnosticStatus

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes.diagnostics import OK, WARN, status
from vla_accel_ros.nodes.running.lifecycle import ManagedNode
from vla_accel_ros.nodes.throttled import Throttled
from vla_accel_ros.sensing.ingest import Ingest
from vla_accel_ros.sensing.trained import TrainedImage, TrainedInputs, TrainedState

PERIOD_S = 10.0
"""Of one sentence in the log, while it holds."""


class TrainedReport:
    """Compares a node's inputs with training. state, images: see TrainedInputs; a node whose chunks a fleet
    makes knows neither."""

    def __init__(
        self,
        node: ManagedNode,
        contract: Contract,
        ingest: Ingest,
        state: TrainedState | None = None,
        images: Mapping[str, TrainedImage] | None = None,
    ) -> None:
        self._contract, self._ingest = contract, ingest
        self._trained = TrainedInputs(contract, state, images or {})
        self._log, self.sentences = Throttled(node, PERIOD_S), list[str]()
        for sentence in self._trained.still:
            node.get_logger().warning(sentence)

    def look(self) -> None:
        """Compare the newest inputs, and log what is not like in training."""
        newest = self._ingest.newest_state()
        self.sentences = [] if newest is None else self._trained.joints(newest[0])
        for camera in self._contract.cameras:
            pixels = self._ingest.picture(camera.name)
            if pixels is not None:
                self.sentences += self._trained.picture(camera.name, camera.image, pixels)
        if self.sentences:
            self._log.warning("not as in training: " + "\n".join(self.sentences))

    def status(self) -> DiagnosticStatus:
        """The line of diagnostics."""
        said = "; ".join(self.sentences) or "inputs are as in training, as far as that is known"
        return status("training", WARN if self.sentences else OK, said, {"unlike": len(self.sentences)})
