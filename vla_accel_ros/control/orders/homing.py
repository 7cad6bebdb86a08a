"""~/home: moves all joints to the contract's home, in one discrete move.

Chunks stop and the robot comes to rest first. Afterwards, wherever the move ended, it is held until ~/resume,
and then continues from the measured position. A controller moves by its FollowJointTrajectory action if the
contract names one, and judges by its own tolerances. Otherwise it moves through its output, and this module
checks whether the joints arrive. If one of several controllers fails, the others stop too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from vla_accel_ros.control.contract import LEADS
from vla_accel_ros.control.following.joint_faults import FollowingError, usual
from vla_accel_ros.control.following.watchdog import HOMING, JOINT_STATES, RELEASED
from vla_accel_ros.control.holds import RESTARTED
from vla_accel_ros.control.kinematics.guard import guarded
from vla_accel_ros.control.limits.joint_limits import rest_to_rest_s
from vla_accel_ros.control.orders.moves import MoveInParts, broken_off, move
from vla_accel_ros.control.orders.order import Steps, come_to_rest, until_at_rest
from vla_accel_ros.control.outputs.output import Output, by_name
from vla_accel_ros.control.robot import Robot
from vla_accel_ros.control.trajectory import Trajectory

AT_HOME = "at home; ~/resume goes on"
NOT_AT_HOME = "sent home, and not there; ~/resume goes on"
INACTIVE = "the trajectory node is not active: activate it first"
_ARRIVAL_S = 1.0
_CLOSE_OF_RANGE = 0.02


@dataclass(frozen=True)
class Outcome:
    """How a move of one controller ended. reached: the joints are at the goal. sentence: says that, or why
    not."""

    reached: bool
    sentence: str


class Action(Protocol):
    """The FollowJointTrajectory action of a controller."""

    @property
    def outcome(self) -> Outcome | None:
        """Of the last goal; None while it is on its way."""
        ...

    def start(self, trajectory: Trajectory, now_ns: int) -> None:
        """Send a goal, which replaces an unfinished one."""
        ...

    def cancel(self, why: str) -> bool:
        """Cancel the goal; why: the sentence of the outcome. Returns whether a goal was unfinished; its
        controller then brakes in its own way."""
        ...

    def poll(self) -> None:
        """Cancel a goal whose result is long overdue."""
        ...


@dataclass
class _Move:
    """The move of one controller. parts: None if its action moves it."""

    output: Output
    action: Action | None = None
    parts: MoveInParts | None = None
    outcome: Outcome | None = None

    @property
    def topic(self) -> str:
        return self.output.controller.topic


class Homing:
    """Moves all joints of the contract's home at once. actions: of the controllers that have one, by
    topic."""

    def __init__(self, robot: Robot, actions: Mapping[str, Action]) -> None:
        contract = robot.contract
        self._robot, self._home, self._speed = robot, dict(contract.home), robot.options.move_speed
        self._joints = [joint for joint in contract.joints if joint.name in self._home]
        self._limits = guarded(contract, [j.name for j in self._joints]) if self._joints else None
        following = np.array([(j.following.rad, j.following.s) for j in self._joints]).reshape(-1, 2).T
        self._following = FollowingError(*following)
        self._age_ns = round(contract.chunk.max_age_s * 1e9)
        self._outputs = [o for o in robot.outputs if set(o.controller.joints) & set(self._home)]
        self._actions = actions
        self._moves: list[_Move] = []
        self._sent: dict[str, Trajectory] = {}  # the last one sent, by topic
        self._calls = self._unfinished = self._polled_ns = 0
        self._why = ""

    def order(self) -> Steps:
        """Stop, come to rest, go home, and stay there until ~/resume."""
        holds = self._robot.holds
        if refusal := self._refusal():
            return False, refusal
        self.cancel("replaced by another move")
        self._unfinished += 1
        holds.resume(AT_HOME)
        holds.hold(NOT_AT_HOME)
        success, words = yield from self._go(self._calls)
        yield from until_at_rest(self._robot)
        self._unfinished -= 1
        if success:
            holds.hold(AT_HOME)
            holds.resume(NOT_AT_HOME)
        if not self._unfinished:
            self._robot.go_on(HOMING, list(self._sent.values()))
            self._sent.clear()  # chunks move the robot from here on
        return success, words

    def cancel(self, why: str, jumped: bool = False) -> None:
        """Stop a move in progress, within limits; one that still waits for rest never begins.

        jumped: the clock was set since the last poll.
        """
        self._calls += 1
        self._why = why
        self._stop(why, jumped)

    def poll(self) -> None:
        """Check the progress of the moves; call it at some rate."""
        holds = self._robot.holds
        now_ns = self._polled_ns = self._robot.clock.now_ns()
        for action in self._actions.values():
            action.poll()
        self.take_outcomes()
        if HOMING in holds.holds and holds.faults:
            self._stop(f"stopped, because {next(iter(holds.faults))}")
        if not self._in_parts():
            return
        problem = self._robot.late(JOINT_STATES)
        if problem:
            self._stop(f"stopped, because {problem}")
        elif lost := self._lost():
            self._stop(f"stopped, because {lost}")
        if not all(self._renew(m.output, parts, now_ns) for m, parts in self._in_parts()):
            self._stop("stopped, because this node was not scheduled for too long")
        for unfinished, parts in [(m, p) for m, p in self._in_parts() if now_ns >= p.whole.end_ns]:
            shortfall = self._away(parts.whole)
            if not shortfall or now_ns >= parts.whole.end_ns + _ARRIVAL_S * 1e9:
                topic = unfinished.topic
                words = f"{topic}: did not get home: {shortfall}" if shortfall else f"{topic}: reached"
                self._end(unfinished, Outcome(not shortfall, words))

    def take_outcomes(self) -> None:
        """Take the outcomes of the actions that have ended."""
        for unfinished in [m for m in self._moves if m.action is not None and m.outcome is None]:
            assert unfinished.action is not None
            if unfinished.action.outcome is not None:
                self._end(unfinished, unfinished.action.outcome)

    def _go(self, call: int) -> Steps:
        """Come to rest and move, unless cancelled."""
        robot = self._robot
        if not (yield from come_to_rest(robot, HOMING, moves=True)):
            return False, INACTIVE
        if call != self._calls:
            return False, self._why
        with robot.outputs.lock:
            for output in self._outputs:
                if output.controller.topic in self._actions:
                    output.begin()
        if refusal := self._refusal() or robot.moving:
            return False, refusal
        moves = self._moves = self._start()
        self.take_outcomes()
        while any(unfinished.outcome is None for unfinished in moves):
            yield None
        failures = [m.outcome.sentence for m in moves if m.outcome is not None and not m.outcome.reached]
        return not failures, "; ".join(failures) or AT_HOME

    def _in_parts(self) -> list[tuple[_Move, MoveInParts]]:
        """The unfinished moves through outputs."""
        return [(m, m.parts) for m in self._moves if m.parts is not None and m.outcome is None]

    def _stop(self, why: str, jumped: bool = False) -> None:
        streamed = self._in_parts()
        for unfinished, _ in streamed:  # until all brake, none of them has failed
            unfinished.parts = None
        for action in self._actions.values():
            if action.cancel(why):
                self._robot.settle()
        self.take_outcomes()
        for unfinished, _ in streamed:
            self._brake(unfinished.output, jumped)
        if jumped:
            self._in_new_time({unfinished.topic for unfinished, _ in streamed})
        for unfinished, _ in streamed:
            self._end(unfinished, Outcome(False, f"{unfinished.topic}: {why}"))

    def _end(self, ended: _Move, outcome: Outcome) -> None:
        """A controller that fails stops the others. Where an action stops, only its controller knows."""
        ended.outcome = outcome
        if not outcome.reached:
            if ended.action is not None:
                self._sent.pop(ended.topic, None)
            self._stop("stopped, because another controller did not get there")

    def _in_new_time(self, braking: set[str]) -> None:
        """Convert sent trajectories to the new time, except for the topics in `braking`: a motion that a
        stopped move left brakes; one that had ended rests."""
        now_ns = self._robot.clock.now_ns()
        for output in self._outputs:
            topic = output.controller.topic
            if topic in braking or topic not in self._sent:
                continue
            sent = self._sent[topic]
            if topic not in self._actions and self._was_ns < sent.end_ns:
                self._brake(output, jumped=True)
            else:
                self._sent[topic] = Trajectory(sent.joints, np.array([now_ns]), sent.positions[-1:])

    @property
    def _was_ns(self) -> int:
        """After the clock was set: the present in the old time."""
        clock = self._robot.clock
        return max(self._polled_ns, clock.now_ns() - clock.jumped_ns)

    def _renew(self, output: Output, parts: MoveInParts, now_ns: int) -> bool:
        """Send the next part, so that the controller never has more motion than chunks may give it; False if
        that would come too late."""
        most_ns = self.most_ns
        if not parts.is_due(now_ns, most_ns):
            return True
        if not parts.renew(now_ns, most_ns, self._robot.kept_ns):
            return False
        sent = self._sent[output.controller.topic] = parts.part
        with self._robot.outputs.lock:
            output.send(sent.since(now_ns), now_ns)
        return True

    @property
    def most_ns(self) -> int:
        """Longest motion that a controller may have: as long as of chunks, and long enough to be renewed."""
        return max(self._age_ns, 3 * self._robot.kept_ns)

    def _brake(self, output: Output, jumped: bool) -> None:
        """Stop what was sent; jumped: it was sent before the clock was set."""
        robot, topic = self._robot, output.controller.topic
        now_ns, sent, was_ns = robot.clock.now_ns(), self._sent[topic], self._was_ns if jumped else None
        limits = guarded(robot.contract, sent.joints)
        braking = broken_off(sent, now_ns, robot.approach_ns, robot.kept_ns, limits, was_ns)
        with robot.outputs.lock:
            if jumped:
                braking = output.stop(braking, now_ns) or braking
            else:
                output.send(braking, now_ns)
        self._sent[topic] = braking
        robot.braking(braking.end_ns)

    def _refusal(self) -> str:
        robot = self._robot
        if not robot.active:
            return INACTIVE
        if not self._home:
            return "the contract names no home: add home: {joint: position} to it"
        for controller in (output.controller for output in self._outputs):
            if controller.kind in LEADS and not controller.action:
                return f"{controller.topic} takes no joints: add its FollowJointTrajectory action as action"
        if robot.measured is None:
            return "the joints are not known yet: wait for joint_states"
        problem = robot.late(JOINT_STATES)
        if problem:
            return f"{problem}: look at its driver"
        if doubtful := robot.doubtful:
            return doubtful
        holds = robot.holds.holds
        if RELEASED in holds:
            return "the controllers are released: call ~/reclaim first"
        reasons = [h for h in holds if h not in (HOMING, AT_HOME, NOT_AT_HOME, RESTARTED)]
        return f"{reasons[0].partition('; ~/resume')[0]}: call ~/resume first" if reasons else ""

    def _start(self) -> list[_Move]:
        assert self._limits is not None
        robot, limits = self._robot, self._limits
        names = tuple(joint.name for joint in self._joints)
        measured = robot.measured or {}
        position = np.array([measured[name] for name in names])
        start = np.clip(position, limits.lower, limits.upper)
        goal = np.array([self._home[name] for name in names])
        nearest = limits.near(goal, position)
        goal = np.where((nearest >= limits.lower) & (nearest <= limits.upper), nearest, goal)
        self._following.forget()
        now_ns = robot.clock.now_ns()
        # The motion begins with an approach from the controller's setpoint to the measured position, also of
        # joints that only twists move otherwise.
        distance = np.abs(position - start)
        approach_s = rest_to_rest_s(distance, start, limits, usual(limits.velocity) + distance)
        first_ns = max(robot.approach_ns, round(approach_s * 1e9))
        whole = move(names, start, goal, limits, self._speed, now_ns + first_ns)
        moves = []
        for output in self._outputs:
            topic, share = output.controller.topic, whole.select(output.controller.joints)
            action = self._actions.get(topic)
            moves.append(_Move(output, action))
            if action is not None:
                self._sent[topic] = share
                action.start(share, now_ns)
                continue
            parts = moves[-1].parts = MoveInParts(share, guarded(robot.contract, share.joints), self.most_ns)
            first = parts.part
            with robot.outputs.lock:
                output.send(first, now_ns)
                rests_ns = output.rests_ns()
            parts.later(max(rests_ns - first.end_ns, 0))  # it was shifted by this much
            self._sent[topic] = parts.part
        return moves

    def _lost(self) -> str:
        """The sentence of a joint that does not follow; empty if all joints in motion do. Before its motion
        begins a controller may be anywhere: it was activated at the measured position, and may not have
        reported that."""
        measured, stamps = self._robot.measured or {}, self._robot.measured_ns
        position = np.array([measured.get(joint.name, np.nan) for joint in self._joints])
        stamps_ns = np.array([stamps.get(joint.name, 0) for joint in self._joints], np.int64)
        setpoint = np.full(len(position), np.nan)
        for stamp_ns in np.unique(stamps_ns).tolist():
            commanded = dict[str, float]()
            for moved, parts in [(m, p) for m, p in self._in_parts() if stamp_ns >= p.whole.start_ns]:
                commanded.update(by_name(parts.whole.joints, parts.whole.sample(stamp_ns)[0]))
                with self._robot.outputs.lock:
                    commanded.update(moved.output.commanded(stamp_ns))
            positions = np.array([commanded.get(joint.name, np.nan) for joint in self._joints])
            setpoint = np.where(stamps_ns == stamp_ns, positions, setpoint)
        j = self._following.take(setpoint, position, stamps_ns)
        if j is None:
            return ""
        return self._following.sentence(j, self._joints[j].name, setpoint[j], position[j])

    def _away(self, trajectory: Trajectory) -> str:
        """The sentence of a joint that is not at the trajectory's end; empty if all are."""
        measured = self._robot.measured or {}
        stamps, span = self._robot.measured_ns, guarded(self._robot.contract, trajectory.joints).span
        if min(stamps.get(name, 0) for name in trajectory.joints) < trajectory.end_ns:
            return "nothing has been measured since it ended; look at the driver of the joints"
        for name, goal, close in zip(trajectory.joints, trajectory.positions[-1], _CLOSE_OF_RANGE * span):
            if abs(measured[name] - goal) > close:
                return f"{name} is at {measured[name]:.3f}, not {goal:.3f}; clear its way"
        return ""
