"""~/home of the trajectory node: all joints to the contract's home, in one discrete move.

Chunks stop and the robot stands before, and goes on from where the joints are after. A controller moves by
its FollowJointTrajectory action where the contract names one, which judges by tolerances of its own;
otherwise through its adapter, and we look whether the joints get there. If one of several controllers does
not, the others stop too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from rclpy.task import Future
from std_srvs.srv import Trigger

from vla_accel_ros.control.braking import brake
from vla_accel_ros.control.limits import JointLimits
from vla_accel_ros.control.moves import move
from vla_accel_ros.control.trajectory import MotionState, Trajectory
from vla_accel_ros.nodes.adapters.adapter import Adapter
from vla_accel_ros.nodes.moves import JointMove, Outcome, Tolerances
from vla_accel_ros.nodes.release import say
from vla_accel_ros.nodes.standing import HOMING, OPERATOR, RELEASED, Standing
from vla_accel_ros.sensing.contract import Contract

_ARRIVAL_S = 1.0
_CLOSE_OF_RANGE = 0.02


@dataclass
class _Streamed:
    """A move through an adapter. Its outcome comes when the joints are there, or a while after they
    should.
    """

    adapter: Adapter
    trajectory: Trajectory
    outcome: Future


class Home:
    """~/home: to the contract's home, all its joints at once.

    standing: as in Release. adapters: of the contract's controllers. speed: share of the limits. Raises
    ValueError when control_msgs is needed and not installed.
    """

    def __init__(
        self,
        standing: Standing,
        contract: Contract,
        adapters: list[Adapter],
        speed: float,
        tolerances: Tolerances,
    ) -> None:
        self._standing, self._home, self._speed = standing, dict(contract.home), speed
        self._joints = [joint for joint in contract.joints if joint.name in self._home]
        self._limits = JointLimits.of(self._joints) if self._joints else None
        self._range = {joint.name: joint.upper - joint.lower for joint in self._joints}
        self._adapters = [a for a in adapters if set(a.controller.joints) <= set(self._home)]
        self._actions = {
            a.controller.topic: JointMove(standing.node, a.controller.action, tolerances)
            for a in self._adapters
            if a.controller.action
        }
        self._streamed: list[_Streamed] = []
        self._calls = 0

    async def home(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        """Stop, stand, go home, and let chunks move the robot again."""
        refusal = self._refusal()
        if refusal:
            return say(response, False, refusal)
        self.cancel("replaced by another move")
        self._calls += 1
        call = self._calls
        if not await self._standing.stand(HOMING):
            return say(response, False, "the trajectory node is not active: activate it first")
        if call != self._calls:
            return say(response, False, "replaced by another move")
        outcomes = [await future for future in self._start()]
        if call == self._calls:
            self._standing.go_on(HOMING)
        failed = [outcome.sentence for outcome in outcomes if not outcome.reached]
        return say(response, not failed, "; ".join(failed) or "home")

    def cancel(self, why: str) -> None:
        """Stop a move that is under way, within limits."""
        for action in self._actions.values():
            action.cancel(why)
        now_ns = self._standing.node.now_ns()
        streamed, self._streamed = self._streamed, []
        for one in streamed:
            limits = self._limits_of(one.trajectory.joints)
            state = MotionState(now_ns, *one.trajectory.sample(now_ns))
            one.adapter.send(brake(one.trajectory.joints, state, limits), now_ns)
            one.outcome.set_result(Outcome(False, f"{one.adapter.controller.topic}: {why}"))

    def poll(self) -> None:
        """See how far moves are; call at some rate."""
        for action in self._actions.values():
            action.poll()
        if not self._streamed:
            return
        late = self._standing.late("joint_states")
        if late:
            self.cancel(f"stopped, because {late}")
        now_ns = self._standing.node.now_ns()
        for one in [s for s in self._streamed if now_ns >= s.trajectory.end_ns]:
            away = self._away(one.trajectory)
            if not away or now_ns >= one.trajectory.end_ns + _ARRIVAL_S * 1e9:
                self._streamed.remove(one)
                topic = one.adapter.controller.topic
                sentence = f"{topic}: did not get home: {away}" if away else f"{topic}: reached"
                one.outcome.set_result(Outcome(not away, sentence))

    def close(self) -> None:
        """Cancel, and leave the actions."""
        self.cancel("the trajectory node was cleaned up")
        for action in self._actions.values():
            action.close()

    def _refusal(self) -> str:
        if not self._home:
            return "the contract names no home: add home: {joint: position} to it"
        for adapter in self._adapters:
            controller = adapter.controller
            if controller.kind == "servo_twist" and not controller.action:
                return f"{controller.topic} takes twists only: add its FollowJointTrajectory action as action"
        if self._standing.measured is None:
            return "the joints are not known yet: wait for joint_states"
        if OPERATOR in self._standing.holds:
            return "held by the operator: call ~/resume first"
        return (
            "the controllers are released: call ~/reclaim first" if RELEASED in self._standing.holds else ""
        )

    def _start(self) -> list[Future]:
        assert self._limits is not None
        names = tuple(joint.name for joint in self._joints)
        measured = self._standing.measured or {}
        here = np.array([measured[name] for name in names])
        goal = np.array([self._home[name] for name in names])
        now_ns = self._standing.node.now_ns()
        whole = move(names, here, goal, self._limits, self._speed, now_ns)
        futures = []
        for adapter in self._adapters:
            share = whole.select(adapter.controller.joints)
            action = self._actions.get(adapter.controller.topic)
            if action is not None:
                future = action.start(share)
            else:
                future = Future()
                self._streamed.append(_Streamed(adapter, share, future))
                adapter.send(share, now_ns)
            futures.append(future)
        for future in futures:
            future.add_done_callback(self._ended)
        return futures

    def _ended(self, future: Future) -> None:
        """One controller that does not get there stops the others."""
        outcome: Outcome = future.result()
        if not outcome.reached:
            self.cancel("stopped, because another controller did not get there")

    def _away(self, trajectory: Trajectory) -> str:
        """Which joint is not at the trajectory's end; empty when all are."""
        measured = self._standing.measured or {}
        for name, goal in zip(trajectory.joints, trajectory.positions[-1]):
            if abs(measured[name] - goal) > _CLOSE_OF_RANGE * self._range[name]:
                return f"{name} is at {measured[name]:.3f}, not {goal:.3f}; clear its way"
        return ""

    def _limits_of(self, names: tuple[str, ...]) -> JointLimits:
        joints = {joint.name: joint for joint in self._joints}
        return JointLimits.of(joints[name] for name in names)
