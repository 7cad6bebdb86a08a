"""Why the robot is held, oldest reason first, and what of that survives the process.

A reason that a person must take back (~/resume, ~/reclaim) survives everything that makes the motion start
anew: a clock jump, a deactivation, a cleanup. It is also in the node's state file, so it survives the
process. After a process that did not end cleanly the robot is held as well, unless `after_restart` says
go_on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, TimeoutError
from typing import Any, Protocol

from vla_accel_ros.control.following.watchdog import HOMING, OPERATOR, RELEASED, Safety
from vla_accel_ros.control.state_file import Restored

RESTARTED = "restarted after a crash; ~/resume goes on"
RESET = "the joints were put elsewhere"
UNKNOWN = "what held the robot before the restart is unknown"
WRITTEN_S = 1.0
LATE = f"the disk did not take it within {WRITTEN_S:g} s"


class Store(Protocol):
    """What a process leaves to the next one: control/state_file.py."""

    @property
    def path(self) -> object: ...

    def restore(self) -> Restored: ...

    def keep(self, fields: Mapping[str, Any]) -> Future[str]: ...

    def finish(self, fields: Mapping[str, Any]) -> Future[str]: ...


class Holds:
    """The holds of a robot. store: where they survive a restart; None for nowhere.

    Attributes: `holds`, their reasons, oldest first, each with what it follows from (Safety.hold); `faults`,
    those that nobody asked for, and a person must take back; `switched`, the request to the controller
    manager when the robot was released, empty for none; `human`, whether a person commands the arm,
    which holds nothing and survives as they do; `written`, the last write to the store.
    """

    def __init__(self, store: Store | None = None) -> None:
        self.holds: dict[str, Sequence[str]] = {}
        self.faults = dict[str, None]()
        self.switched: dict[str, Any] = {}
        self.human = False
        self.written: Future[str] | None = None
        self._passing: set[str] = set()
        self._hindrances: dict[str, Sequence[str]] = {}
        self._store, self._restored = store, store is None
        self._safety: Safety | None = None

    def restore(self, go_on: bool) -> list[str]:
        """Restore the holds of the previous process; once that has succeeded, later calls do nothing.

        go_on: do not hold because it ended uncleanly. Returns sentences for a person. Raises ValueError with
        go_on if the holds of this process cannot be written: the next one would move a robot that a person
        has held, or released to others.
        """
        if self._restored or self._store is None:
            return []
        previous = self._store.restore()
        problem = previous.problem
        holds, switched = previous.fields.get("holds", []), previous.fields.get("switched", {})
        if isinstance(holds, list) and isinstance(switched, dict) and all(isinstance(h, str) for h in holds):
            self.holds |= dict.fromkeys(holds, ())
            self.switched = switched
            self.human = previous.fields.get("human") is True
        else:
            problem = f"{self._store.path} is not of this version"
        if problem:
            self.holds[f"{UNKNOWN} ({problem}); ~/resume goes on"] = ()
        elif not previous.clean and not go_on:
            self.holds[RESTARTED] = ()
        self._keep()
        unwritten = _result(self.written)
        if self.forgets and go_on:
            raise ValueError(
                f"after_restart is go_on, but a restart would forget what is held or released: {unwritten}; "
                "let this user write there ($XDG_STATE_HOME is another place), or set after_restart to hold"
            )
        if unwritten and not go_on:
            # The next process could not know either.
            self.holds[f"{UNKNOWN} ({unwritten}); ~/resume goes on"] = ()
        self._restored = True
        return [reason for reason in (*self.holds, unwritten) if reason]

    def finish(self) -> None:
        """Record that the process ends cleanly."""
        if self._store is not None and self._restored:
            _result(self._store.finish(self._fields()))

    def apply(self, safety: Safety) -> None:
        """Apply the holds to a motion that begins now."""
        self._safety = safety
        for reason, follows in self.holds.items():
            safety.hold(reason, follows)

    @property
    def forgets(self) -> str:
        """Why a restart would forget what is held or released now; empty if it would not."""
        return self.written.result() if self.written is not None and self.written.done() else ""

    @property
    def lent(self) -> bool:
        """Whether something other than chunks moves the robot, or is about to."""
        return any(reason in self.holds for reason in (RELEASED, HOMING, RESET))

    @property
    def released(self) -> bool:
        """Whether others may command the controllers, or are about to."""
        return RELEASED in self.holds

    @property
    def lasting(self) -> list[str]:
        """The reasons that something else must take back than a controller that listens again."""
        return [reason for reason in self.holds if reason not in self._hindrances]

    def hold(self, reason: str = OPERATOR, passing: bool = False, follows: Sequence[str] = ()) -> None:
        """Stop, and stay stopped until this reason is taken back. passing: it passes by itself, and does not
        survive a restart. follows: see Safety.hold."""
        self.holds[reason] = follows
        if self._safety is not None:
            self._safety.hold(reason, follows)
        if passing:
            self._passing.add(reason)
        else:
            self._keep()

    def hindered(self, hindrances: Mapping[str, Sequence[str]]) -> None:
        """Stop for these reasons as long as they are passed; called at a fixed rate. hindrances: reason ->
        what it follows from, see Safety.hold."""
        for reason in self._hindrances.keys() - hindrances.keys():
            self.resume(reason)
        for reason, follows in hindrances.items():
            if reason not in self._hindrances:
                self.hold(reason, passing=True, follows=follows)
        self._hindrances = dict(hindrances)

    def fault(self, sentence: str, follows: Sequence[str] = ()) -> None:
        """Stop because of a fault, until a person resumes. follows: see Safety.hold."""
        self.faults[sentence] = None
        self.hold(sentence, follows=follows)

    def resume(self, reason: str = OPERATOR) -> None:
        """Take a reason back; motion continues from the commanded position."""
        if reason in self.holds:
            del self.holds[reason]
            if self._safety is not None:
                self._safety.resume(reason)
            if reason not in self._passing:
                self._keep()
            self._passing.discard(reason)

    def resume_all(self) -> None:
        """Take back everything that a person may: not what passes by itself, nor the release to others."""
        for reason in [h for h in self.holds if h not in self._passing and h != RELEASED]:
            self.resume(reason)
        self.faults.clear()

    def resume_passing(self) -> None:
        """Take back what passes by itself, except a move."""
        self._hindrances = {}
        for reason in self._passing - {HOMING}:
            self.resume(reason)

    def switch(self, activated: list[str], deactivated: list[str], sure: bool = True) -> None:
        """Record that the controller manager was asked to activate and deactivate these; sure=False: is about
        to be."""
        request = {"on": activated, "off": deactivated, "sure": sure}
        self.switched = request if activated or deactivated else {}
        self._keep()

    def hand_to(self, human: bool) -> None:
        """Record that a person commands the arm from now on, or the policy."""
        self.human = human
        self._keep()

    def _keep(self) -> None:
        if self._store is not None:
            self.written = self._store.keep(self._fields())

    def _fields(self) -> dict[str, Any]:
        holds = [h for h in self.holds if h not in self._passing]
        return {"holds": holds, "switched": self.switched, "human": self.human}


def _result(written: Future[str] | None) -> str:
    try:
        return "" if written is None else written.result(WRITTEN_S)
    except TimeoutError:
        return LATE
