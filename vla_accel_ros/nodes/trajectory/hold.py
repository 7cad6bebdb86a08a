"""Brings the robot to a stand for a reason, keeps it there, and lets it go on from where it is then.

What others do with the robot (an operator's hold, a move home, MoveIt) begins with a robot that stands and
to which nothing is sent. A reason that a person must take back (~/resume, ~/reclaim) survives what makes the
motion begin anew, a clock jump, a deactivation and a cleanup, and is in the node's state file, so that it
survives the process too. After a process that did not end cleanly the robot is held as well, unless
`after_restart` says go_on.
"""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

from rclpy.task import Future

from vla_accel_ros.control.following.follower import ChunkFollower
from vla_accel_ros.control.following.watchdog import OPERATOR, Motion
from vla_accel_ros.control.state_file import StateFile
from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.nodes.adapters.outputs import Outputs
from vla_accel_ros.nodes.lifecycle import ManagedNode
from vla_accel_ros.nodes.trajectory.reports import MotionTopic
from vla_accel_ros.sensing.joints import JointHistory

__all__ = ["HOMING", "OPERATOR", "RELEASED", "Hold"]

RELEASED = "released to others; ~/reclaim takes the controllers back"
HOMING = "going home"
AT_HOME = "at home; ~/resume goes on"
NOT_AT_HOME = "sent home, and not there; ~/resume goes on"
RESTARTED = "restarted after a crash; ~/resume goes on"
UNKNOWN = "what held the robot before the restart is not known"
SETTLE_S = 2.0
_WRITTEN_S = 1.0
_AT_ONCE_S = 0.003
_LATE = f"the disk did not take it within {_WRITTEN_S:g} s"


class Hold:
    """The holds of a trajectory node. state: where they survive a restart; None: nowhere.

    holds: their reasons, oldest first. faults: those of them that nobody asked for, and a person must take
    back. switched: what the controller manager was told when the robot was released, empty for nothing; see
    Release.
    """

    def __init__(self, node: ManagedNode, state: StateFile | None = None) -> None:
        self.node, self.holds, self.faults = node, dict[str, None](), dict[str, None]()
        self.switched: dict[str, Any] = {}
        self._passing: set[str] = set()
        self._hindrances: list[str] = []
        self._state, self._restored = state, state is None
        self._written: concurrent.futures.Future[str] | None = None
        self._answering: list[tuple[Future, float]] = []
        self._waiting: list[Future] = []
        self._brakes_until_ns = self._settles_until_ns = 0

    def restore(self, go_on: bool, warn: Callable[[str], object]) -> None:
        """Take up what the process before was held by; from the second call on nothing happens.

        go_on: do not hold because it ended uncleanly. warn: gets what a person should know.
        """
        if self._restored or self._state is None:
            return
        self._restored = True
        before = self._state.restore()
        problem = before.problem
        holds, switched = before.fields.get("holds", []), before.fields.get("switched", {})
        if isinstance(holds, list) and isinstance(switched, dict) and all(isinstance(h, str) for h in holds):
            self.holds |= dict.fromkeys(holds)
            self.switched = switched
        else:
            problem = f"{self._state.path} is not of this version"
        if problem:
            self.holds[f"{UNKNOWN} ({problem}); ~/resume goes on"] = None
        elif not before.clean and not go_on:
            self.holds[RESTARTED] = None
        unwritten = _result(self._state.keep(self._fields()))
        if unwritten and not go_on:
            # Its own next process could not know either.
            self.holds[f"{UNKNOWN} ({unwritten}); ~/resume goes on"] = None
        for sentence in (*self.holds, unwritten):
            if sentence:
                warn(sentence)

    def finish(self) -> None:
        """The process ends cleanly."""
        if self._state is not None and self._restored:
            _result(self._state.finish(self._fields()))

    def over(
        self, follower: ChunkFollower, joints: JointHistory, outputs: Outputs, motion: MotionTopic
    ) -> None:
        """Hold this motion from now on, as the one before.

        In an active node it begins anew because the clock has jumped: the controllers may still brake.
        """
        self._follower, self._joints, self._outputs, self._motion = follower, joints, outputs, motion
        for reason in self.holds:
            follower.safety.hold(reason)
        self._brakes_until_ns = self._settles_until_ns = 0
        if not self.node.active:
            self.settle()  # controllers may still execute what a process before this one sent
        else:
            limits = follower.buffer.limits
            longest_s = float((limits.velocity / limits.acceleration).max(initial=0.0))
            self._brakes_until_ns = self.node.now_ns() + round(longest_s * 1e9)

    @property
    def lent(self) -> bool:
        """Whether something else than chunks moves the robot, or is about to."""
        return RELEASED in self.holds or HOMING in self.holds

    @property
    def kept_ns(self) -> int:
        """How long what was sent must go on as it was, for what is sent now comes that late."""
        return round(self._follower.buffer.kept_s * 1e9)

    @property
    def measured(self) -> dict[str, float] | None:
        """The newest joints by name; None while one is unknown."""
        if self._joints.newest_ns is None:
            return None
        return dict(zip(self._joints.joints, self._joints.newest().tolist()))

    def approach_ns(self) -> int:
        """How long a controller takes at most to where the joints are, from wherever it holds them."""
        return self._follower.joining.approach_ns

    @property
    def measured_ns(self) -> int:
        """Stamp of the newest joints; 0 before the first."""
        return self._joints.newest_ns or 0

    def late(self, name: str) -> str:
        """What is late of this input, a sentence; empty when it is not."""
        late = self._follower.safety.watchdog.late(self.node.now_ns())
        return next((str(one) for one in late if one.name == name), "")

    def hold(self, reason: str = OPERATOR, passing: bool = False) -> None:
        """Stop, and stay stopped until this reason is taken back. passing: it passes by itself, and does not
        survive a restart.
        """
        self.holds[reason] = None
        self._follower.safety.hold(reason)
        if passing:
            self._passing.add(reason)
        else:
            self._keep()

    def hindered(self, sentences: list[str]) -> None:
        """Stop for these as long as they are told, at a rate."""
        if sentences == self._hindrances:
            return
        for sentence in set(self._hindrances) - set(sentences):
            self.resume(sentence)
        for sentence in sentences:
            if sentence not in self._hindrances:
                self.hold(sentence, passing=True)
        self._hindrances = sentences

    def fault(self, sentence: str) -> None:
        """Stop for what went wrong, until a person resumes."""
        if sentence not in self.holds:
            self.node.get_logger().error(sentence)
        self.faults[sentence] = None
        self.hold(sentence)

    def resume(self, reason: str = OPERATOR) -> None:
        """Take a reason back; motion goes on where it was commanded to."""
        if reason in self.holds:
            del self.holds[reason]
            self._follower.safety.resume(reason)
            if reason not in self._passing:
                self._keep()
            self._passing.discard(reason)

    def resume_all(self) -> None:
        """Take back all that a person may: not what passes by itself, nor the release to others."""
        for reason in [h for h in self.holds if h not in self._passing and h != RELEASED]:
            self.resume(reason)
        self._follower.resume()
        self.faults.clear()

    def resume_passing(self) -> None:
        """Take back what passes by itself, but for a move."""
        self._hindrances = []
        for reason in self._passing - {HOMING}:
            self.resume(reason)

    def switch(self, on: list[str], off: list[str], sure: bool = True) -> None:
        """The controller manager was told to activate and deactivate these; not sure: or is about to be."""
        self.switched = {"on": on, "off": off, "sure": sure} if on or off else {}
        self._keep()

    def open(self) -> None:
        """Make the controllers listen again."""
        self._outputs.open()

    async def kept(self) -> str:
        """Return when what holds the robot is on the disk; words for an answer when it is not for now."""
        if self._written is None:
            return ""
        with suppress(concurrent.futures.TimeoutError):  # mostly at once: who asked need not wait a turn
            return _unwritten(self._written.result(_AT_ONCE_S))
        answer: Future = Future()
        self._answering.append((answer, time.monotonic() + _WRITTEN_S))
        self._written.add_done_callback(partial(self._is_written, answer))
        return _unwritten(await answer)

    async def stand(self, reason: str) -> bool:
        """Hold, and return when the robot stands and nothing is sent; False when the node is not active."""
        if not self.node.active:
            return False
        self.hold(reason, passing=reason == HOMING)
        if reason == HOMING:
            self.settle()  # a move begins where the joints are
        if not await self.stood():
            self.resume(reason)
            return False
        if reason != HOMING:  # a move goes on from what was commanded last
            self._outputs.begin()
        return True

    async def stood(self) -> bool:
        """Return when a robot that is held stands, brakes and all; False when the node is not active."""
        while self.node.active and not self._stands():
            stands: Future = Future()
            self._waiting.append(stands)
            if not await stands:
                return False
        return self.node.active

    def braking(self, end_ns: int) -> None:
        """Brakes were sent to the controllers; the robot does not stand before they end."""
        self._brakes_until_ns = max(self._brakes_until_ns, end_ns)

    def settle(self) -> None:
        """A controller was told to stop in its own way; the robot does not stand before its joints do, for
        SETTLE_S at most."""
        self._settles_until_ns = self.node.now_ns() + round(SETTLE_S * 1e9)

    def go_on(self, reason: str, sent: Iterable[Trajectory] = ()) -> None:
        """Take a reason back when the robot stands; motion begins anew where the joints are, by chunks that
        are observed from now on. sent: what controllers were told to do meanwhile.
        """
        self._follower.begin_anew(self.node.now_ns())
        for last in sent:
            self._follower.joining.begin_after(last)
        if reason == HOMING:  # what was commanded last is known
            self._outputs.rest()
        else:
            self._outputs.begin()
        self._motion.begin()
        self.resume(reason)

    def poll(self) -> None:
        """Tell those who wait for a stand or for the disk; call at a rate."""
        if self._waiting and self._stands():
            self._answer(True)
        for answer, until_s in self._answering:
            if time.monotonic() > until_s and not answer.done():
                answer.set_result(_LATE)
        self._answering = [one for one in self._answering if not one[0].done()]

    def abandon(self) -> None:
        """Tell those who wait that the node is no longer active."""
        self._answer(False)

    def _stands(self) -> bool:
        now_ns = self.node.now_ns()
        until_ns = max(self._brakes_until_ns, self._outputs.rests_ns())
        if self._follower.safety.state is not Motion.HOLDING or now_ns < until_ns:
            return False
        if self._follower.joining.lasts(now_ns) or self._outputs.waits:
            return False
        return now_ns >= self._settles_until_ns or self._follower.joining.stand

    def _answer(self, stands: bool) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            future.set_result(stands)

    def _keep(self) -> None:
        if self._state is not None:
            self._written = self._state.keep(self._fields())

    def _fields(self) -> dict[str, Any]:
        return {"holds": [h for h in self.holds if h not in self._passing], "switched": self.switched}

    def _is_written(self, answer: Future, written: concurrent.futures.Future[str]) -> None:
        """In the thread that has written it."""
        answer.set_result(written.result())
        executor = self.node.executor
        if executor is not None:
            executor.wake()


def _unwritten(why: str) -> str:
    return f"; a restart would forget it, because {why}" if why else ""


def _result(written: concurrent.futures.Future[str]) -> str:
    try:
        return written.result(_WRITTEN_S)
    except concurrent.futures.TimeoutError:
        return _LATE
