"""Discrete moves through a controller's FollowJointTrajectory action, such as going home.

It is not for a stream of chunks: every goal preempts the one before and is judged by tolerances. However a
goal ends (rejected, aborted with a code, cancelled, replaced, no answer), its outcome has one sentence with
the mend, which can be shown as it is. Nothing here waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from action_msgs.msg import GoalStatus
from rclpy.action import ActionClient
from rclpy.node import Node
from rclpy.task import Future
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from vla_accel_ros.control.orders.homing import Outcome
from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.nodes.interfaces import interface
from vla_accel_ros.nodes.messages import convert

# The meaning of each error_code of the action, and the mend.
ERRORS = {
    -1: ("calls the goal invalid", "read its message and its log"),
    -2: ("has other joints than the goal", "mend controllers[].joints of the contract"),
    -3: ("finds the goal's time in the past", "synchronise the clocks, or set use_sim_time on both sides"),
    -4: (
        "aborted the motion because a joint left its path tolerance",
        "clear the way of the robot, lower move_speed, or raise constraints.<joint>.trajectory",
    ),
    -5: (
        "did not come within its goal tolerance in time",
        "clear the way of the robot, or raise constraints.<joint>.goal or constraints.goal_time",
    ),
}


@dataclass(frozen=True)
class Tolerances:
    """Tolerances of a goal; 0 leaves each to the controller's own parameters.

    path, goal: of every joint (rad or m), on the way and at the end. time_s: how late the goal may be
    reached.
    """

    path: float = 0.0
    goal: float = 0.0
    time_s: float = 0.0


class JointMove:
    """Moves one controller's joints to the end of a trajectory.

    action: name of its FollowJointTrajectory action. grace_s: how much longer than planned a goal may take
    before it is cancelled. ended: called when a goal has an outcome. Raises ValueError if control_msgs is not
    installed.
    """

    def __init__(
        self,
        node: Node,
        action: str,
        tolerances: Tolerances = Tolerances(),
        grace_s: float = 5.0,
        ended: Callable[[], object] = lambda: None,
    ) -> None:
        kind = interface("control_msgs/action/FollowJointTrajectory", f"the action {action}")
        self._tolerance = interface("control_msgs/msg/JointTolerance", f"the action {action}")
        self._kind, self._tolerances, self.action = kind, tolerances, action
        self._grace_s, self._ended = grace_s, ended
        self._client = ActionClient(node, kind, action)
        self._goal: _Goal | None = None
        self._last: _Goal | None = None

    def ready(self) -> bool:
        """Whether there is a server of the action."""
        return self._client.server_is_ready()

    @property
    def outcome(self) -> Outcome | None:
        """How the last goal ended; None while it is on its way."""
        return None if self._last is None else self._last.outcome

    def start(self, trajectory: Trajectory, now_ns: int) -> None:
        """Send a goal, which replaces an unfinished one.

        Times count from when the goal arrives, instead of from now_ns. From its own setpoint the controller
        goes to the first point, which must be far enough ahead for that.
        """
        replaced, self._goal = self._goal, None
        length_s = (trajectory.end_ns - now_ns) * 1e-9
        goal = _Goal(self.action, length_s + self._tolerances.time_s + self._grace_s, self._ended)
        self._last = goal
        if not self.ready():
            goal.end(
                False,
                f"no node has the action {self.action}: start its controller, or mend controllers[].action",
            )
        else:
            self._goal = goal
            self._client.send_goal_async(self._message(trajectory, now_ns)).add_done_callback(goal.answered)
        if replaced is not None:
            replaced.end(False, f"{self.action}: replaced by another move")

    def cancel(self, why: str) -> bool:
        """Cancel the goal; why: the sentence of the outcome. Returns whether a goal was unfinished; its
        controller then brakes in its own way."""
        goal, self._goal = self._goal, None
        return goal is not None and goal.cancel(f"{self.action}: {why}")

    def poll(self) -> None:
        """Cancel a goal whose result is long overdue; call it regularly."""
        if self._goal is not None and self._goal.overdue:
            self.cancel("the controller did not report the result; check that it still runs")

    def close(self) -> None:
        """Cancel, and destroy the client."""
        self.cancel("cancelled")
        self._client.destroy()

    def _message(self, trajectory: Trajectory, now_ns: int) -> Any:
        message = JointTrajectory(joint_names=list(trajectory.joints))
        for i in range(len(trajectory)):
            point = JointTrajectoryPoint(positions=trajectory.positions[i].tolist())
            if trajectory.velocities is not None:
                point.velocities = trajectory.velocities[i].tolist()
            convert.set_stamp(point.time_from_start, int(trajectory.times_ns[i]) - now_ns)
            message.points.append(point)
        goal, allowed = self._kind.Goal(trajectory=message), self._tolerances
        if allowed.path:
            goal.path_tolerance = [self._tolerance(name=n, position=allowed.path) for n in trajectory.joints]
        if allowed.goal:
            goal.goal_tolerance = [self._tolerance(name=n, position=allowed.goal) for n in trajectory.joints]
        convert.set_stamp(goal.goal_time_tolerance, round(allowed.time_s * 1e9))
        return goal


class _Goal:
    """One goal from sending to its outcome, which comes once."""

    def __init__(self, action: str, longest_s: float, ended: Callable[[], object]) -> None:
        self._action, self._told = action, ended
        self.outcome: Outcome | None = None
        self._until = time.monotonic() + longest_s
        self._handle: Any = None
        self._cancelled = False

    @property
    def overdue(self) -> bool:
        return time.monotonic() > self._until and self.outcome is None

    def end(self, reached: bool, sentence: str) -> None:
        if self.outcome is None:
            self.outcome = Outcome(reached, sentence)
            self._told()

    def cancel(self, sentence: str) -> bool:
        """Cancel the goal; returns whether it was unfinished."""
        self._cancelled, unfinished = True, self.outcome is None
        if self._handle is not None and unfinished:
            self._handle.cancel_goal_async()
        self.end(False, sentence)
        return unfinished

    def answered(self, future: Future) -> None:
        self._handle = future.result()
        if not self._handle.accepted:
            self.end(False, f"{self._action}: the controller rejects the goal; its log says why")
        elif self._cancelled:
            self._handle.cancel_goal_async()
        else:
            self._handle.get_result_async().add_done_callback(self._ended)

    def _ended(self, future: Future) -> None:
        answer = future.result()
        code, words = answer.result.error_code, answer.result.error_string.strip().rstrip(".")
        details = f" ({words})" if words else ""
        if answer.status == GoalStatus.STATUS_SUCCEEDED and code == 0:
            self.end(True, f"{self._action}: reached")
        elif code in ERRORS:
            failure, fix = ERRORS[code]
            self.end(False, f"{self._action}: the controller {failure}{details}; {fix}")
        elif answer.status == GoalStatus.STATUS_CANCELED:
            self.end(False, f"{self._action}: cancelled by the controller or another client{details}")
        else:
            ending = f"failed with code {code}" if code else "aborted without a code"
            self.end(False, f"{self._action}: the controller {ending}{details}; read its log")
