"""Brings the robot to a stand for a reason, keeps it there, and lets it go on from where it is then.

What others do with the robot (an operator's hold, a move home, MoveIt) begins with a robot that stands and
to which nothing is sent. Reasons survive what makes the motion begin anew (a clock jump, a deactivation): a
robot that was held stays held.
"""

from __future__ import annotations

from rclpy.task import Future

from vla_accel_ros.control.follower import ChunkFollower
from vla_accel_ros.control.watchdog import OPERATOR, Motion
from vla_accel_ros.nodes.adapters.outputs import Outputs
from vla_accel_ros.nodes.lifecycle import ManagedNode
from vla_accel_ros.nodes.motion import MotionTopic
from vla_accel_ros.sensing.joints import JointHistory

__all__ = ["HOMING", "OPERATOR", "RELEASED", "Standing"]

RELEASED = "released to others; ~/reclaim takes the controllers back"
HOMING = "going home"
SETTLE_S = 2.0


class Standing:
    """The holds of a trajectory node. holds: their reasons, oldest first."""

    def __init__(self, node: ManagedNode) -> None:
        self.node, self.holds = node, dict[str, None]()
        self._waiting: list[Future] = []
        self._brakes_until_ns = self._settles_until_ns = 0

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
        if self.node.active:
            limits = follower.buffer.limits
            longest_s = float((limits.velocity / limits.acceleration).max(initial=0.0))
            self._brakes_until_ns = self.node.now_ns() + round(longest_s * 1e9)

    def forget(self) -> None:
        """Keep the operator's hold only: what it was lent for is over."""
        self.holds = {reason: None for reason in self.holds if reason == OPERATOR}

    @property
    def lent(self) -> bool:
        """Whether something else than chunks moves the robot, or is about to."""
        return RELEASED in self.holds or HOMING in self.holds

    @property
    def measured(self) -> dict[str, float] | None:
        """The newest joints by name; None while one is unknown."""
        if self._joints.newest_ns is None:
            return None
        return dict(zip(self._joints.joints, self._joints.newest().tolist()))

    def late(self, name: str) -> str:
        """What is late of this input, a sentence; empty when it is not."""
        late = self._follower.safety.watchdog.late(self.node.now_ns())
        return next((str(one) for one in late if one.name == name), "")

    def hold(self, reason: str = OPERATOR) -> None:
        """Stop, and stay stopped until this reason is taken back."""
        self.holds[reason] = None
        self._follower.safety.hold(reason)

    def resume(self, reason: str = OPERATOR) -> None:
        """Take a reason back; motion goes on where it was commanded to."""
        self.holds.pop(reason, None)
        self._follower.safety.resume(reason)

    async def stand(self, reason: str) -> bool:
        """Hold, and return when the robot stands and nothing is sent; False when the node is not active."""
        if not self.node.active:
            return False
        self.hold(reason)
        if not await self.stood():
            self.resume(reason)
            return False
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

    def go_on(self, reason: str) -> None:
        """Take a reason back when the robot stands; motion begins anew where the joints are, by chunks that
        are observed from now on.
        """
        self._follower.begin_anew(self.node.now_ns())
        self._outputs.begin()
        self._motion.begin()
        self.resume(reason)

    def poll(self) -> None:
        """Tell those who wait for a stand; call at a rate."""
        if self._waiting and self._stands():
            self._answer(True)

    def abandon(self) -> None:
        """Tell those who wait that the node is no longer active."""
        self._answer(False)

    def _stands(self) -> bool:
        now_ns = self.node.now_ns()
        if self._follower.safety.state is not Motion.HOLDING or now_ns < self._brakes_until_ns:
            return False
        return now_ns >= self._settles_until_ns or self._follower.joints_stand

    def _answer(self, stands: bool) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            future.set_result(stands)
