"""Brings the robot to rest for a reason, keeps it there, and lets it continue from where it is then.

Everything else that moves the robot (a move home, MoveIt), and an operator's hold, begins with a robot at
rest that gets no commands. A reason that a person must take back (~/resume, ~/reclaim) survives everything
that makes the motion start anew: a clock jump, a deactivation, a cleanup. It is also in the node's state
file, so it survives the process. After a process that did not end cleanly the robot is held as well, unless
`after_restart` says go_on.
"""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from rclpy.task import Future

from vla_accel_ros.control.following.follower import ChunkFollower
from vla_accel_ros.control.following.joining import MOVING
from vla_accel_ros.control.following.watchdog import HOMING, JOINT_STATES, OPERATOR, RELEASED, MotionState
from vla_accel_ros.control.state_file import StateFile
from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.nodes.adapters.outputs import Outputs
from vla_accel_ros.nodes.running.lifecycle import ManagedNode
from vla_accel_ros.nodes.trajectory.reports import MotionTopic
from vla_accel_ros.sensing.joints import JointHistory

__all__ = ["HOMING", "OPERATOR", "RELEASED", "Hold"]

AT_HOME = "at home; ~/resume goes on"
NOT_AT_HOME = "sent home, and not there; ~/resume goes on"
RESTARTED = "restarted after a crash; ~/resume goes on"
RESET = "the joints were put elsewhere"
UNKNOWN = "what held the robot before the restart is unknown"
SETTLE_S = 2.0
_WRITTEN_S = 1.0
_AT_ONCE_S = 0.003
_LATE = f"the disk did not take it within {_WRITTEN_S:g} s"


class Hold:
    """The holds of a trajectory node. state: where they survive a restart; None for nowhere.

    holds: their reasons, oldest first, each with what it follows from (Safety.hold). faults: those that
    nobody asked for, and a person must take back.
    switched: the request to the controller manager when the robot was released, empty for none; see Release.
    """

    def __init__(self, node: ManagedNode, state: StateFile | None = None) -> None:
        self.node, self.faults = node, dict[str, None]()
        self.holds: dict[str, Sequence[str]] = {}
        self.switched: dict[str, Any] = {}
        self._passing: set[str] = set()
        self._hindrances: dict[str, Sequence[str]] = {}
        self._state, self._restored = state, state is None
        self._written: concurrent.futures.Future[str] | None = None
        self._answering: list[tuple[Future, float]] = []
        self._waiting: list[Future] = []
        self._brakes_until_ns = self._settles_until_ns = 0

    def restore(self, go_on: bool, warn: Callable[[str], object]) -> None:
        """Restore the holds of the previous process; once that has succeeded, later calls do nothing.

        go_on: do not hold because it ended uncleanly. warn: called with sentences for a person. Raises
        ValueError with go_on if the holds of this process cannot be written: the next one would move a robot
        that a person has held, or released to others.
        """
        if self._restored or self._state is None:
            return
        before = self._state.restore()
        problem = before.problem
        holds, switched = before.fields.get("holds", []), before.fields.get("switched", {})
        if isinstance(holds, list) and isinstance(switched, dict) and all(isinstance(h, str) for h in holds):
            self.holds |= dict.fromkeys(holds, ())
            self.switched = switched
        else:
            problem = f"{self._state.path} is not of this version"
        if problem:
            self.holds[f"{UNKNOWN} ({problem}); ~/resume goes on"] = ()
        elif not before.clean and not go_on:
            self.holds[RESTARTED] = ()
        self._keep()
        unwritten = _result(self._written)
        if self.forgets and go_on:
            raise ValueError(
                f"after_restart is go_on, but a restart would forget what is held or released: {unwritten}; "
                "let this user write there ($XDG_STATE_HOME is another place), or set after_restart to hold"
            )
        if unwritten and not go_on:
            # The next process could not know either.
            self.holds[f"{UNKNOWN} ({unwritten}); ~/resume goes on"] = ()
        self._restored = True
        for sentence in (*self.holds, unwritten):
            if sentence:
                warn(sentence)

    def finish(self) -> None:
        """Record that the process ends cleanly."""
        if self._state is not None and self._restored:
            _result(self._state.finish(self._fields()))

    def over(
        self, follower: ChunkFollower, joints: JointHistory, outputs: Outputs, motion: MotionTopic
    ) -> None:
        """Apply the holds to a new motion, which begins now.

        In an active node it begins because the clock has jumped: the controllers may still brake.
        """
        self._follower, self._joints, self._outputs, self._motion = follower, joints, outputs, motion
        for reason, follows in self.holds.items():
            follower.safety.hold(reason, follows)
        self._brakes_until_ns = self._settles_until_ns = 0
        if not self.node.active:
            self.settle()  # controllers may still execute what an earlier process sent
        else:
            limits = follower.buffer.limits
            longest_s = float((limits.velocity / limits.acceleration).max(initial=0.0))
            self._brakes_until_ns = self.node.now_ns() + round(longest_s * 1e9)

    @property
    def forgets(self) -> str:
        """Why a restart would forget what is held or released now; empty if it would not."""
        return self._written.result() if self._written is not None and self._written.done() else ""

    @property
    def lent(self) -> bool:
        """Whether something other than chunks moves the robot, or is about to."""
        return any(reason in self.holds for reason in (RELEASED, HOMING, RESET))

    @property
    def released(self) -> bool:
        """Whether others may command the controllers, or are about to."""
        return RELEASED in self.holds

    @property
    def kept_ns(self) -> int:
        """How long the sent motion must go on unchanged, since a new message arrives that late."""
        return round(self._follower.buffer.kept_s * 1e9)

    @property
    def measured(self) -> dict[str, float] | None:
        """The newest joints by name; None while one is unknown."""
        if self._joints.newest_ns is None:
            return None
        return dict(zip(self._joints.joints, self._joints.newest().tolist()))

    def approach_ns(self) -> int:
        """Longest time that a controller needs to the measured position, from wherever it holds the
        joints."""
        return self._follower.joining.approach_ns

    @property
    def measured_ns(self) -> dict[str, int]:
        """The stamp of the newest state of each joint, by name; empty while one is unknown."""
        if self._joints.newest_ns is None:
            return {}
        return dict(zip(self._joints.joints, self._joints.stamps_ns.tolist()))

    @property
    def doubtful(self) -> str:
        """A sentence if a joint is measured where it cannot be, or at two places at once, else empty."""
        return self._follower.joining.outside or self._follower.contradiction

    @property
    def moving(self) -> str:
        """A sentence if the joints of a robot that gets no commands move, else empty. Joints that are late
        cannot tell."""
        return "" if self._follower.joining.at_rest or self.late(JOINT_STATES) else MOVING

    def late(self, name: str) -> str:
        """A sentence if this input is late, else empty."""
        late = self._follower.safety.watchdog.late(self.node.now_ns())
        return next((str(one) for one in late if one.name == name), "")

    def hold(self, reason: str = OPERATOR, passing: bool = False, follows: Sequence[str] = ()) -> None:
        """Stop, and stay stopped until this reason is taken back. passing: it passes by itself, and does not
        survive a restart. follows: see Safety.hold."""
        self.holds[reason] = follows
        self._follower.safety.hold(reason, follows)
        if passing:
            self._passing.add(reason)
        else:
            self._keep()

    def hindered(self, hindrances: Mapping[str, Sequence[str]]) -> None:
        """Stop for these reasons as long as they are passed; called at a fixed rate. hindrances: reason ->
        what it follows from, see Safety.hold."""
        for sentence in self._hindrances.keys() - hindrances.keys():
            self.resume(sentence)
        for sentence, follows in hindrances.items():
            if sentence not in self._hindrances:
                self.hold(sentence, passing=True, follows=follows)
        self._hindrances = dict(hindrances)

    def fault(self, sentence: str, follows: Sequence[str] = ()) -> None:
        """Stop because of a fault, until a person resumes. follows: see Safety.hold."""
        self.faults[sentence] = None
        self.hold(sentence, follows=follows)

    def resume(self, reason: str = OPERATOR) -> None:
        """Take a reason back; motion continues from the commanded position."""
        if reason in self.holds:
            del self.holds[reason]
            self._follower.safety.resume(reason)
            if reason not in self._passing:
                self._keep()
            self._passing.discard(reason)

    def resume_all(self) -> None:
        """Take back everything that a person may: not what passes by itself, nor the release to others."""
        for reason in [h for h in self.holds if h not in self._passing and h != RELEASED]:
            self.resume(reason)
        self._follower.resume()
        self.faults.clear()

    def resume_passing(self) -> None:
        """Take back what passes by itself, except a move."""
        self._hindrances = {}
        for reason in self._passing - {HOMING}:
            self.resume(reason)

    def switch(self, on: list[str], off: list[str], sure: bool = True) -> None:
        """Record that the controller manager was asked to activate and deactivate these; sure=False: is about
        to be."""
        self.switched = {"on": on, "off": off, "sure": sure} if on or off else {}
        self._keep()

    def open(self) -> None:
        """Prepare the controllers again."""
        self._outputs.open()

    async def kept(self) -> str:
        """Return when the holds are on the disk; returns words for an answer if they are not."""
        if self._written is None:
            return ""
        # usually at once, without another turn of the executor
        with suppress(concurrent.futures.TimeoutError):
            return _unwritten(self._written.result(_AT_ONCE_S))
        answer: Future = Future()
        self._answering.append((answer, time.monotonic() + _WRITTEN_S))
        self._written.add_done_callback(partial(self._is_written, answer))
        return _unwritten(await answer)

    async def come_to_rest(self, reason: str) -> bool:
        """Hold, and return when the robot is at rest and gets no commands; False if the node is not
        active."""
        if not self.node.active:
            return False
        self.hold(reason, passing=reason != RELEASED)
        if reason == HOMING:
            self.settle()  # a move begins at the measured position
        rests = await self.until_at_rest()
        self._outputs.rest()  # a stream that is corrected by measured joints may never come to its end
        if not rests or not await self.until_at_rest(streams=True):
            self.resume(reason)
            return False
        if reason != HOMING:  # a move continues from the last command
            self._outputs.begin()
        return True

    async def until_at_rest(self, streams: bool = False) -> bool:
        """Return when a held robot is at rest, braking included; False if the node is not active. streams:
        when streams of commands have come to their end, too, which may be behind what was decided."""
        while self.node.active and not (self._is_at_rest() and (not streams or self._outputs.at_rest())):
            rests: Future = Future()
            self._waiting.append(rests)
            if not await rests:
                return False
        return self.node.active

    def braking(self, end_ns: int) -> None:
        """Stops were sent to the controllers; the robot is not at rest before they end."""
        self._brakes_until_ns = max(self._brakes_until_ns, end_ns)

    def settle(self) -> None:
        """A controller was told to stop in its own way; the robot is not at rest before its joints are, for
        at most SETTLE_S."""
        self._settles_until_ns = self.node.now_ns() + round(SETTLE_S * 1e9)

    def go_on(self, reason: str, sent: Iterable[Trajectory] = ()) -> None:
        """Take a reason back when the robot is at rest; motion starts anew from the measured position, with
        chunks that are observed from now on. sent: what controllers were told to do meanwhile."""
        self._follower.begin_anew(self.node.now_ns())
        for last in sent:
            self._follower.joining.begin_after(last)
        if reason == HOMING:  # the last command is known
            self._outputs.rest()
        else:
            self._outputs.begin()
        self._motion.begin()
        self.resume(reason)

    def poll(self) -> None:
        """Answer the calls that wait for rest or for the disk; called at a fixed rate."""
        if self._waiting and self._is_at_rest():
            self._answer(True)
        for answer, until_s in self._answering:
            if time.monotonic() > until_s and not answer.done():
                answer.set_result(_LATE)
        self._answering = [one for one in self._answering if not one[0].done()]

    def abandon(self) -> None:
        """Answer waiting calls that the node is no longer active."""
        self._answer(False)

    def _is_at_rest(self) -> bool:
        now_ns = self.node.now_ns()
        until_ns = max(self._brakes_until_ns, self._outputs.rests_ns())
        if self._follower.safety.state is not MotionState.HOLDING or now_ns < until_ns:
            return False
        if self._follower.joining.lasts(now_ns) or self._outputs.waits:
            return False
        return now_ns >= self._settles_until_ns or self._follower.joining.at_rest

    def _answer(self, rests: bool) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            future.set_result(rests)

    def _keep(self) -> None:
        if self._state is not None:
            self._written = self._state.keep(self._fields())

    def _fields(self) -> dict[str, Any]:
        return {"holds": [h for h in self.holds if h not in self._passing], "switched": self.switched}

    def _is_written(self, answer: Future, written: concurrent.futures.Future[str]) -> None:
        """Runs in the thread that has written the file."""
        answer.set_result(written.result())
        executor = self.node.executor
        if executor is not None:
            executor.wake()


def _unwritten(why: str) -> str:
    return f"; a restart would forget it, because {why}" if why else ""


def _result(written: concurrent.futures.Future[str] | None) -> str:
    if written is None:
        return ""
    try:
        return written.result(_WRITTEN_S)
    except concurrent.futures.TimeoutError:
        return _LATE
