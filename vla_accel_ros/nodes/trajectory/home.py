"""~/home of the trajectory node: moves all joints to the contract's home, in one discrete move.

Chunks stop and the robot comes to rest first. Afterwards, wherever the move ended, it is held until ~/resume,
and then continues from the measured position. A controller moves by its FollowJointTrajectory action if the
contract names one, and judges by its own tolerances. Otherwise it moves through its adapter, and this module
checks whether the joints arrive. If one of several controllers fails, the others stop too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from rclpy.task import Future
from std_srvs.srv import Trigger

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.following.joint_faults import FollowingError, usual
from vla_accel_ros.control.limits.joint_limits import JointLimits, rest_to_rest_s
from vla_accel_ros.control.moves import MoveInParts, broken_off, move
from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.nodes.adapters.adapter import Adapter, by_name
from vla_accel_ros.nodes.trajectory.hold import AT_HOME, HOMING, NOT_AT_HOME, RELEASED, RESTARTED, Hold
from vla_accel_ros.nodes.trajectory.moves import JointMove, Outcome, Tolerances
from vla_accel_ros.nodes.trajectory.release import say

_ARRIVAL_S = 1.0
_CLOSE_OF_RANGE = 0.02
_INACTIVE = "the trajectory node is not active: activate it first"


@dataclass
class _Streamed:
    """A move through an adapter. Its outcome comes when the joints have arrived, or some time later."""

    adapter: Adapter
    parts: MoveInParts
    outcome: Future

    @property
    def trajectory(self) -> Trajectory:
        return self.parts.whole


class Home:
    """~/home: moves all joints of the contract's home at once.

    hold: as in Release. adapters: of the contract's controllers. speed: share of the limits. Raises
    ValueError if control_msgs is needed and not installed.
    """

    def __init__(
        self,
        hold: Hold,
        contract: Contract,
        adapters: list[Adapter],
        speed: float,
        tolerances: Tolerances,
    ) -> None:
        self._hold, self._home, self._speed = hold, dict(contract.home), speed
        self._joints = [joint for joint in contract.joints if joint.name in self._home]
        self._limits = JointLimits.of(self._joints) if self._joints else None
        following = np.array([(j.following.rad, j.following.s) for j in self._joints]).reshape(-1, 2).T
        self._following = FollowingError(*following)
        self._age_ns = round(contract.chunk.max_age_s * 1e9)
        self._adapters = [a for a in adapters if set(a.controller.joints) <= set(self._home)]
        self._actions = {
            a.controller.topic: JointMove(hold.node, a.controller.action, tolerances)
            for a in self._adapters
            if a.controller.action
        }
        self._streamed: list[_Streamed] = []
        self._sent: dict[str, Trajectory] = {}  # the last one sent, by topic
        self._calls = self._unfinished = self._polled_ns = 0
        self._why = ""

    async def home(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        """Stop, come to rest, go home, and stay there until ~/resume."""
        refusal = self._refusal()
        if refusal:
            return say(response, False, refusal)
        self.cancel("replaced by another move")
        self._unfinished += 1
        self._hold.resume(AT_HOME)
        self._hold.hold(NOT_AT_HOME)
        problem = await self._go(self._calls)
        await self._hold.until_at_rest()
        self._unfinished -= 1
        if not problem:
            self._hold.hold(AT_HOME)
            self._hold.resume(NOT_AT_HOME)
        if not self._unfinished:
            self._hold.go_on(HOMING, self._sent.values())
            self._sent.clear()  # chunks move the robot from here on
        return say(response, not problem, problem or AT_HOME)

    def cancel(self, why: str, jumped: bool = False) -> None:
        """Stop a move in progress, within limits; one that still waits for rest never begins.

        jumped: the clock was set since the last poll.
        """
        self._calls += 1
        self._why = why
        self._stop(why, jumped)

    def poll(self) -> None:
        """Check the progress of the moves; call it at some rate."""
        self._polled_ns = self._hold.node.now_ns()
        for action in self._actions.values():
            action.poll()
        if HOMING in self._hold.holds and self._hold.faults:
            self._stop(f"stopped, because {next(iter(self._hold.faults))}")
        if not self._streamed:
            return
        late = self._hold.late("joint_states")
        if late:
            self._stop(f"stopped, because {late}")
        elif lost := self._lost():
            self._stop(f"stopped, because {lost}")
        now_ns = self._polled_ns
        if not all(self._renew(one, now_ns) for one in self._streamed):
            self._stop("stopped, because this node was not scheduled for too long")
        for one in [s for s in self._streamed if now_ns >= s.trajectory.end_ns]:
            away = self._away(one.trajectory)
            if not away or now_ns >= one.trajectory.end_ns + _ARRIVAL_S * 1e9:
                self._streamed.remove(one)
                topic = one.adapter.controller.topic
                sentence = f"{topic}: did not get home: {away}" if away else f"{topic}: reached"
                one.outcome.set_result(Outcome(not away, sentence))

    def close(self) -> None:
        """Cancel, and close the actions."""
        self.cancel("the trajectory node was cleaned up")
        for action in self._actions.values():
            action.close()

    async def _go(self, call: int) -> str:
        """Come to rest and move, unless cancelled; empty when home, else a sentence."""
        if not await self._hold.come_to_rest(HOMING):
            return _INACTIVE
        if call != self._calls:
            return self._why
        for adapter in self._adapters:
            if adapter.controller.topic in self._actions:
                adapter.begin()
        if refusal := self._refusal() or self._hold.moving:
            return refusal
        outcomes = [await future for future in self._start()]
        return "; ".join(outcome.sentence for outcome in outcomes if not outcome.reached)

    def _stop(self, why: str, jumped: bool = False) -> None:
        # A goal that is cancelled ends at once, and calls this again: nothing is left for that then.
        streamed, self._streamed = self._streamed, []
        for action in self._actions.values():
            if action.cancel(why):
                self._hold.settle()
        for one in streamed:
            self._brake(one.adapter, jumped)
        if jumped:
            self._in_new_time({one.adapter.controller.topic for one in streamed})
        for one in streamed:
            one.outcome.set_result(Outcome(False, f"{one.adapter.controller.topic}: {why}"))

    def _in_new_time(self, braking: set[str]) -> None:
        """Convert sent trajectories to the new time, except for the topics in `braking`: a motion that a
        stopped move left brakes; one that had ended rests."""
        now_ns = self._hold.node.now_ns()
        for adapter in self._adapters:
            topic = adapter.controller.topic
            if topic in braking or topic not in self._sent:
                continue
            sent = self._sent[topic]
            if topic not in self._actions and self._was_ns < sent.end_ns:
                self._brake(adapter, jumped=True)
            else:
                self._sent[topic] = Trajectory(sent.joints, np.array([now_ns]), sent.positions[-1:])

    @property
    def _was_ns(self) -> int:
        """After the clock was set: the present in the old time."""
        node = self._hold.node
        return max(self._polled_ns, node.now_ns() - node.jumped_ns)

    def _renew(self, one: _Streamed, now_ns: int) -> bool:
        """Send the next part, so that the controller never has more motion than chunks may give it; False if
        that would come too late."""
        parts, most_ns = one.parts, self._most_ns
        if not parts.is_due(now_ns, most_ns):
            return True
        if not parts.renew(now_ns, most_ns, self._hold.kept_ns):
            return False
        sent = self._sent[one.adapter.controller.topic] = parts.part
        one.adapter.send(sent.since(now_ns), now_ns)
        return True

    @property
    def _most_ns(self) -> int:
        """Longest motion that a controller may have: as long as of chunks, and long enough to be renewed."""
        return max(self._age_ns, 3 * self._hold.kept_ns)

    def _brake(self, adapter: Adapter, jumped: bool) -> None:
        """Stop what was sent; jumped: it was sent before the clock was set."""
        topic, now_ns = adapter.controller.topic, self._hold.node.now_ns()
        sent, was_ns = self._sent[topic], self._was_ns if jumped else None
        given = now_ns, self._hold.approach_ns(), self._hold.kept_ns, self._limits_of(sent.joints), was_ns
        braking = broken_off(sent, *given)
        if jumped:
            braking = adapter.stop(braking, now_ns) or braking
        else:
            adapter.send(braking, now_ns)
        self._sent[topic] = braking
        self._hold.braking(braking.end_ns)

    def _refusal(self) -> str:
        if not self._hold.node.active:
            return _INACTIVE
        if not self._home:
            return "the contract names no home: add home: {joint: position} to it"
        for adapter in self._adapters:
            controller = adapter.controller
            if controller.kind == "servo_twist" and not controller.action:
                return f"{controller.topic} takes twists only: add its FollowJointTrajectory action as action"
        if self._hold.measured is None:
            return "the joints are not known yet: wait for joint_states"
        late = self._hold.late("joint_states")
        if late:
            return f"{late}: look at its driver"
        if doubtful := self._hold.doubtful:
            return doubtful
        if RELEASED in self._hold.holds:
            return "the controllers are released: call ~/reclaim first"
        others = [h for h in self._hold.holds if h not in (HOMING, AT_HOME, NOT_AT_HOME, RESTARTED)]
        return f"{others[0].partition('; ~/resume')[0]}: call ~/resume first" if others else ""

    def _start(self) -> list[Future]:
        assert self._limits is not None
        names = tuple(joint.name for joint in self._joints)
        measured = self._hold.measured or {}
        limits = self._limits
        where = np.array([measured[name] for name in names])
        here = np.clip(where, limits.lower, limits.upper)
        goal = np.array([self._home[name] for name in names])
        nearest = limits.near(goal, where)
        goal = np.where((nearest >= limits.lower) & (nearest <= limits.upper), nearest, goal)
        self._following.forget()
        now_ns = self._hold.node.now_ns()
        # The motion begins with an approach from the controller's setpoint to the measured position, also of
        # joints that only twists move otherwise.
        away = usual(limits.velocity) + np.abs(where - here)
        first_ns = max(self._hold.approach_ns(), round(rest_to_rest_s(away, limits) * 1e9))
        whole = move(names, here, goal, self._limits, self._speed, now_ns + first_ns)
        futures = []
        for adapter in self._adapters:
            share = whole.select(adapter.controller.joints)
            action = self._actions.get(adapter.controller.topic)
            if action is not None:
                self._sent[adapter.controller.topic] = share
                future = action.start(share, now_ns)
            else:
                future = Future()
                parts = MoveInParts(share, self._limits_of(share.joints), self._most_ns)
                first = parts.part
                adapter.send(first, now_ns)
                parts.later(max(adapter.rests_ns() - first.end_ns, 0))  # it was shifted by this much
                self._sent[adapter.controller.topic] = parts.part
                self._streamed.append(_Streamed(adapter, parts, future))
            futures.append(future)
        for adapter, future in zip(self._adapters, futures):
            future.add_done_callback(partial(self._ended, adapter.controller.topic))
        return futures

    def _ended(self, topic: str, future: Future) -> None:
        """A controller that fails stops the others. Where an action stops, only its controller knows."""
        outcome: Outcome = future.result()
        if not outcome.reached:
            if topic in self._actions:
                self._sent.pop(topic, None)
            self._stop("stopped, because another controller did not get there")

    def _lost(self) -> str:
        """The sentence of a joint that does not follow; empty if all joints in motion do. Before its motion
        begins a controller may be anywhere: it was activated at the measured position, and may not have
        reported that."""
        measured, stamps = self._hold.measured or {}, self._hold.measured_ns
        here = np.array([measured.get(joint.name, np.nan) for joint in self._joints])
        stamps_ns = np.array([stamps.get(joint.name, 0) for joint in self._joints], np.int64)
        there = np.full(len(here), np.nan)
        for stamp_ns in np.unique(stamps_ns).tolist():
            commanded = dict[str, float]()
            for one in [s for s in self._streamed if stamp_ns >= s.trajectory.start_ns]:
                whole = one.trajectory
                commanded.update(by_name(whole.joints, whole.sample(stamp_ns)[0]))
                commanded.update(one.adapter.commanded(stamp_ns))
            at = np.array([commanded.get(joint.name, np.nan) for joint in self._joints])
            there = np.where(stamps_ns == stamp_ns, at, there)
        j = self._following.take(there, here, stamps_ns)
        if j is None:
            return ""
        return self._following.sentence(j, self._joints[j].name, there[j], here[j])

    def _away(self, trajectory: Trajectory) -> str:
        """The sentence of a joint that is not at the trajectory's end; empty if all are."""
        measured = self._hold.measured or {}
        stamps, span = self._hold.measured_ns, self._limits_of(trajectory.joints).span
        if min(stamps.get(name, 0) for name in trajectory.joints) < trajectory.end_ns:
            return "nothing has been measured since it ended; look at the driver of the joints"
        for name, goal, close in zip(trajectory.joints, trajectory.positions[-1], _CLOSE_OF_RANGE * span):
            if abs(measured[name] - goal) > close:
                return f"{name} is at {measured[name]:.3f}, not {goal:.3f}; clear its way"
        return ""

    def _limits_of(self, names: tuple[str, ...]) -> JointLimits:
        joints = {joint.name: joint for joint in self._joints}
        return JointLimits.of(joints[name] for name in names)
