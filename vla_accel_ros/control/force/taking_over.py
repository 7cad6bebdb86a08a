"""The node's side of a reaction: it takes over the path, reports the reason, and lets motion continue.

A late sample (a driver that died) passes by itself; a faulty sensor and a collision need a person. A contact
that the arm gave way to passes by itself when it has been over for a moment, unless that happens again and
again, or the arm retreated as far as it may and is still in contact.
"""

from __future__ import annotations

from collections import deque

from vla_accel_ros.control.following.watchdog import HOMING, MotionState
from vla_accel_ros.control.force.guard import ForceGuard, Phase, Reaction, Why
from vla_accel_ros.control.force.reflexes import Reflexes
from vla_accel_ros.control.force.sensor import Level
from vla_accel_ros.control.orders.homing import INACTIVE, Homing
from vla_accel_ros.control.robot import Robot

_WITHIN_NS = 10_000_000_000
AGAIN = "; ~/resume goes on"
NO_BIAS = "no sensor of the contract has a bias to tare"


class TakingOver:
    """Takes over the reactions of a robot with force sensors. Use it from one thread."""

    def __init__(self, robot: Robot, guard: ForceGuard, homing: Homing) -> None:
        self._robot, self._homing, self.guard = robot, homing, guard
        self._holds, self._clock, self._lock = robot.holds, robot.clock, robot.outputs.lock
        self.reflexes = Reflexes(robot, guard)
        self._blind = self._yielded = self._collision = ""
        self._free_since_ns: int | None = None
        self._rested_ns: int | None = None
        self._yields_ns: deque[int] = deque()

    def begin(self) -> None:
        """Motion starts anew."""
        with self._lock:
            self.guard.forget()
        self._clear()

    def adopt(self, now_ns: int) -> None:
        """Take over the reactions since the last call. Call it before anything is decided about motion."""
        with self._lock:
            reactions = self.guard.reactions()
        for reaction in reactions:
            self._robot.follower.yields(reaction.path, now_ns, reaction.commit_ns)
            self._tell(reaction, now_ns)

    def watch(self) -> None:
        """Hold and release the robot according to the sensors, and end a move because of them; call it after
        the follower's step."""
        if self.reflexes.failed:
            self._end_move(self.reflexes.failed)
        reason = self._watched(self._clock.now_ns())
        if reason and HOMING in self._holds.holds:
            self._end_move(reason)

    def _end_move(self, reason: str) -> None:
        if reason not in self._holds.holds:
            self._holds.fault(reason)
            self._homing.cancel(reason)

    def tare(self) -> tuple[bool, str]:
        """Measure the bias of the sensors again, while the arm stands still."""
        if not any(watch.sensor.tared for watch in self.guard.watches):
            return False, NO_BIAS
        if not self._robot.active:
            return False, INACTIVE
        if self._robot.follower.safety.state is not MotionState.HOLDING:
            return False, "the arm moves: call ~/hold first; the bias is measured at rest"
        with self._lock:
            self.guard.begin_tare()
        return True, "taring; motion continues when there is a bias (see /diagnostics)"

    def _watched(self, now_ns: int) -> str:
        """Returns a sentence if a move has to end, else empty."""
        guard, state = self.guard, self._robot.follower.safety.state
        with self._lock:
            problem, failure = guard.problem(now_ns), guard.wrong
            level, contact = guard.contact
            collided, guard.collided = guard.collided, ""
            guard.armed = state is not MotionState.HOLDING and not self._holds.lent
            if guard.armed and state is MotionState.RUNNING:
                guard.go_on()
        if self._holds.lent:
            self.end_retreat(now_ns)  # nobody watches the sensors on the way back any more
            self._clear()
            return problem or contact
        if failure and failure not in self._holds.holds:
            self._holds.fault(failure)
        self._hold_blind("" if failure else problem)
        if collided:
            self._collision = f"{collided}: the arm retreated{AGAIN}"
            self._holds.fault(self._collision)
        if self._yielded:
            self._look_whether_over(level, contact, now_ns)
        return ""

    def end_retreat(self, now_ns: int) -> None:
        """End a retreat because of something else, which takes effect at once."""
        with self._lock:
            reaction = self.guard.end_retreat(now_ns, self._robot.kept_ns)
            if reaction is not None:
                self._robot.outputs.react(reaction)
        self.adopt(now_ns)

    def forgive(self) -> None:
        """A person has resumed."""
        with self._lock:
            self.guard.forgive()
        self._yields_ns.clear()

    def _tell(self, reaction: Reaction, now_ns: int) -> None:
        if reaction.why is Why.COLLISION:
            self._holds.fault(f"{reaction.sentence}: free the arm{AGAIN}")
        elif reaction.why is Why.BLIND:
            self._hold_blind(reaction.sentence)
        elif reaction.why is Why.CONTACT:
            self._give_way(reaction.sentence, now_ns)

    def _give_way(self, sentence: str, now_ns: int) -> None:
        self._clear_yield()
        self._yielded = f"gives way: {sentence}"
        self._holds.hold(self._yielded, passing=True)
        self._yields_ns.append(now_ns)
        while self._yields_ns and now_ns - self._yields_ns[0] > _WITHIN_NS:
            self._yields_ns.popleft()
        if len(self._yields_ns) > self.guard.force.retreat.most:
            self._yields_ns.clear()
            self._holds.fault(f"gave way again and again, last because {sentence}{AGAIN}")

    def _hold_blind(self, sentence: str) -> None:
        if sentence == self._blind:
            return
        if self._blind:
            self._holds.resume(self._blind)
        self._blind = sentence
        if sentence:
            self._holds.hold(sentence, passing=True)

    def _look_whether_over(self, level: Level, contact: str, now_ns: int) -> None:
        """Decide whether motion continues after the arm gave way."""
        reasons = {self._yielded, self._blind, self._collision}
        if self.guard.phase is Phase.RETREATING and set(self._holds.holds) - reasons:
            self.end_retreat(now_ns)
        if level is not Level.FREE or self._free_since_ns is None:
            self._free_since_ns = now_ns if level is Level.FREE else None
        if self._robot.follower.safety.state is not MotionState.HOLDING:
            return
        rest_ns = self.guard.force.retreat.rest_s * 1e9
        self._rested_ns = now_ns if self._rested_ns is None else self._rested_ns
        if self._free_since_ns is not None and now_ns - self._free_since_ns >= rest_ns:
            self._clear_yield()
        elif level is not Level.FREE and now_ns - self._rested_ns >= rest_ns:
            self._clear_yield()
            self._holds.fault(f"gave way as far as it may, but still {contact}: free the arm{AGAIN}")

    def _clear(self) -> None:
        self._clear_yield()
        self._hold_blind("")

    def _clear_yield(self) -> None:
        if self._yielded:
            self._holds.resume(self._yielded)
        self._yielded, self._free_since_ns, self._rested_ns = "", None, None
