"""The last instruction of the inference node, kept over a restart.

Its sender may be gone (`ros2 topic pub --once`, `vla say`), and a node that restarts after a crash would wait
for ever. So the instruction is in the node's state file. After a crash it is restored, unless `after_restart`
is forget. After a clean end it is not, because a robot that is switched on must not begin with yesterday's
instruction. In both cases the node says what happened to it.
"""

from __future__ import annotations

from concurrent.futures import Future, TimeoutError
from contextlib import suppress

from vla_accel_ros.control.state_file import LARGEST, StateFile
from vla_accel_ros.nodes.running.lifecycle import ManagedNode
from vla_accel_ros.sensing.ingest import NO_INSTRUCTION

_WRITTEN_S = 1.0


class Instruction:
    """The instruction of one node, for the life of its process. text: empty before the first; `missing` then
    says why."""

    def __init__(self, node: ManagedNode) -> None:
        self._log = node.get_logger()
        self._state = StateFile(node.get_fully_qualified_name(), node.context.get_domain_id())
        self._restored = False
        self.text, self.missing = "", NO_INSTRUCTION

    def restore(self, keep: bool) -> None:
        """Restore or forget the previous process's instruction; later calls do nothing."""
        if self._restored:
            return
        self._restored = True
        before = self._state.restore()
        last = before.fields.get("instruction", "")
        if before.problem:
            self.missing = f"no instruction since the restart, and the last is unknown ({before.problem})"
        elif last and isinstance(last, str):
            if keep and not before.clean:
                self.text = last
                self._log.warning(f"instruction: {last!r}, kept over a crash")
            else:
                self.missing = f"no instruction since the restart: say it again, the last was {last!r}"
        if not self.text and self.missing != NO_INSTRUCTION:
            self._log.warning(self.missing)
        self._keep()

    def told(self, text: str) -> None:
        """Take a new instruction."""
        if text != self.text:
            self.text = text
            self._keep()

    def finish(self) -> None:
        """Record that the process ends cleanly."""
        if self._restored:
            with suppress(TimeoutError):
                self._state.finish(self._fields()).result(_WRITTEN_S)

    def _keep(self) -> None:
        self._state.keep(self._fields()).add_done_callback(self._written)

    def _written(self, problem: Future[str]) -> None:
        if problem.result():
            self._log.warning(f"a restart would forget the instruction: {problem.result()}")

    def _fields(self) -> dict[str, str]:
        return {"instruction": self.text if len(self.text) < LARGEST // 8 else ""}
