"""What the inference node was told to do last, over a restart.

Who said it may be gone (`ros2 topic pub --once`, `vla say`), and a node that is started again after a crash
would stand for ever without a word. So the instruction is in the node's state file. After a crash it is taken
up again, unless `after_restart` is forget; after a clean end it is not, because a robot that is switched on
must not begin with what it was told the day before. Either way the node says what became of it.
"""

from __future__ import annotations

from concurrent.futures import Future, TimeoutError
from contextlib import suppress

from vla_accel_ros.control.state_file import LARGEST, StateFile
from vla_accel_ros.nodes.lifecycle import ManagedNode
from vla_accel_ros.sensing.ingest import NO_INSTRUCTION

_WRITTEN_S = 1.0


class Instruction:
    """Of one node, for as long as its process lives. text: empty before the first, and then `missing` says
    why."""

    def __init__(self, node: ManagedNode) -> None:
        self._log = node.get_logger()
        self._state = StateFile(node.get_fully_qualified_name(), node.context.get_domain_id())
        self._restored = False
        self.text, self.missing = "", NO_INSTRUCTION

    def restore(self, keep: bool) -> None:
        """Take up, or forget, what the process before was told; from the second call on nothing happens."""
        if self._restored:
            return
        self._restored = True
        before = self._state.restore()
        last = before.fields.get("instruction", "")
        if before.problem:
            self.missing = f"no instruction since the restart, the last is not known ({before.problem})"
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
        """There is a new one."""
        if text != self.text:
            self.text = text
            self._keep()

    def finish(self) -> None:
        """The process ends cleanly."""
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
