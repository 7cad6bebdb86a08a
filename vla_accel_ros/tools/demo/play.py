"""Play one planned episode on the running stack, and record the result.

Between episodes the arm is held, as a person would before reaching into the scene. Then the instruction is
given, the scene is reset, and the arm resumes. Time is that of the simulator's stamps. A reach or a place
ends a moment after its success, or at its time limit; a follow ends at its limit. If a node dies, the episode
continues in the same scene after the node has restarted, with its time limit restarted; such an episode
counts in no rate. Without its robot the episode is over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.nodes.messages.convert import stamp_ns
from vla_accel_ros.sim.tasks import FOLLOW, PLACE, Task
from vla_accel_ros.tools.demo import measure
from vla_accel_ros.tools.demo.plan import CHANGE_AFTER_S, Plan
from vla_accel_ros.tools.running.driven import Driven, NodeDied

if TYPE_CHECKING:
    from vla_accel_msgs.msg import GroundTruth
    from vla_accel_ros.nodes.clients.operator import Operator

REST_S = 0.1
REST_SPEED = 0.05
LINGER_S = 1.0
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Played:
    """The result of one episode.

    said: (time [ns], words) in order. time_s: from the final instruction to success or the end.
    interrupted_by: nodes that died. ages_ms: from image to trajectory, for each trajectory. real_time_factor:
    simulated over elapsed time; None if unknown. jerk: of the arm, "commanded" and "measured"; empty without
    traces. traces: kept of the episode that is drawn only.
    """

    plan: Plan
    begun_ns: int
    ended_ns: int
    said: tuple[tuple[int, str], ...]
    success: bool
    time_s: float
    interrupted_by: tuple[str, ...]
    answers: tuple[measure.Judged, ...]
    chunks: int
    ages_ms: list[float]
    inference_ms: list[float]
    real_time_factor: float | None
    jerk: dict[str, measure.Squares]
    traces: measure.Traces | None

    @property
    def answers_right(self) -> int:
        """Number of true answers."""
        return sum(answer.right for answer in self.answers)

    @property
    def counts(self) -> bool:
        """Whether the episode counts in the rates."""
        return not self.interrupted_by


@dataclass
class Board:
    """The present state, for views in other threads. outcome: empty while the episode runs. drawn: the most
    telling episode, with its traces: a success, with a changed instruction, of a long task."""

    wanted: int | None = None
    plan: Plan | None = None
    said: str = ""
    changed: bool = False
    begun_ns: int = 0
    outcome: str = ""
    played: list[Played] = field(default_factory=list)
    drawn: Played | None = None

    def begin(self, plan: Plan, said: str, now_ns: int) -> None:
        """Start an episode whose scene has been reset."""
        self.plan, self.said, self.begun_ns = plan, said, now_ns
        self.outcome, self.changed = "", False

    def end(self, played: Played) -> None:
        """Note the result of an episode."""
        self.played.append(replace(played, traces=None))
        if played.traces is not None and (self.drawn is None or _telling(played) > _telling(self.drawn)):
            self.drawn = played


def _telling(played: Played) -> tuple[bool, bool, bool, float]:
    return played.success, played.plan.task.family == PLACE, played.plan.first is not None, played.time_s


class Player:
    """Plays episodes on a robot's nodes. arm: the joints that must be still before an episode."""

    def __init__(self, stack: Driven, board: Board, arm: tuple[str, ...]) -> None:
        self._stack, self._board, self._operator = stack, board, stack.operator
        names = self._operator.contract.joint_names
        self._arm = [names.index(name) for name in arm]
        self._arm_names = arm

    def play(self, plan: Plan) -> Played:
        """Play one episode, from holding the arm to its end."""
        board = self._board
        self._said: list[tuple[int, str]] = []
        self._interrupted: list[str] = []
        begun_ns = self._unless_dead(lambda: self._prepare(plan))
        if plan.first is not None:
            self._follow(plan.first, begun_ns, CHANGE_AFTER_S, stop_at_success=False)
            board.changed = True
            self._say(plan.task)
        to_success = plan.task.family != FOLLOW
        since_ns, last = self._follow(plan.task, begun_ns, plan.task.time_limit_s, to_success)
        success = bool(last is not None and last.success)
        board.outcome = "success" if success else "missed"
        over_ns = stamp_ns(last.header.stamp) if last is not None else self._operator.now_ns()
        if success and to_success:
            self._follow(plan.task, over_ns, LINGER_S, stop_at_success=False)
        played = self._write_down(plan, begun_ns, success, (over_ns - since_ns) * 1e-9)
        board.end(played)
        return played

    def _prepare(self, plan: Plan) -> int:
        """Hold the arm, instruct, reset the scene, resume; return the time of the first trajectory."""
        operator, task = self._operator, plan.first or plan.task
        self._stack.call(operator.hold)
        held_ns = operator.now_ns() + round(REST_S * 1e9)

        def at_rest() -> bool:
            measured = operator.measured
            return (
                measured is not None
                and measured.stamp_ns > held_ns
                and bool(np.abs(measured.velocities[self._arm]).max() < REST_SPEED)
            )

        self._stack.wait(at_rest, PATIENCE_S, "arm at rest")
        self._said.clear()
        self._say(task)
        self._stack.call(lambda: operator.reset(task.instruction, plan.seed))
        put_ns = operator.now_ns()
        self._board.begin(plan, task.instruction, put_ns)
        self._stack.call(operator.resume)

        def moving() -> int | None:
            sent = operator.sent
            return sent[-1].received_ns if sent and sent[-1].received_ns > put_ns else None

        return self._stack.wait(moving, PATIENCE_S, "trajectory")

    def _say(self, task: Task) -> None:
        self._operator.instruct(task.instruction)
        self._said.append((self._operator.now_ns(), task.instruction))
        if self._board.changed:
            self._board.said = task.instruction

    def _follow(
        self, task: Task, begun_ns: int, limit_s: float, stop_at_success: bool
    ) -> tuple[int, GroundTruth | None]:
        """Wait for the task's time limit or its success; return when it started, and the last ground
        truth."""

        def started() -> GroundTruth | None:
            truth = self._operator.truth
            said_ns = max(begun_ns, self._said[-1][0])
            if truth is None or stamp_ns(truth.header.stamp) <= said_ns:
                return None
            return truth if truth.instruction == task.instruction else None

        since_ns = begun_ns

        def over() -> GroundTruth | None:
            truth = started()
            if truth is None:
                return None
            late = stamp_ns(truth.header.stamp) - since_ns >= limit_s * 1e9
            return truth if late or (stop_at_success and truth.success) else None

        while "sim_robot" not in self._interrupted:
            try:
                truth = self._stack.wait(started, PATIENCE_S, "ground truth")
                since_ns = stamp_ns(truth.header.stamp)
                return since_ns, self._stack.wait(over, limit_s + PATIENCE_S, "end of the episode")
            except NodeDied as died:
                self._interrupted.append(died.name)
                self._stack.revive(died.name)
        return since_ns, None

    def _unless_dead(self, step: Callable[[], int]) -> int:
        """Return the step's result; a node that dies before the episode begins is revived and the step
        repeated."""
        while True:
            try:
                return step()
            except NodeDied as died:
                self._stack.revive(died.name)

    def _write_down(self, plan: Plan, begun_ns: int, success: bool, time_s: float) -> Played:
        operator = self._operator
        ended_ns = operator.now_ns()

        def during(stamp: int) -> bool:
            return begun_ns <= stamp <= ended_ns

        chunks = [received for received in operator.chunks if during(received.received_ns)]
        sent = [sent for sent in operator.sent if during(sent.received_ns)]
        truths = [truth for truth in operator.truths if during(stamp_ns(truth.header.stamp))]
        answers = [a for a in operator.answers if a.finished and during(stamp_ns(a.header.stamp))]
        judged = measure.judge(
            [(stamp_ns(a.header.stamp), a.prompt, a.text) for a in answers],
            [(stamp_ns(t.header.stamp), t.instruction, t.answer) for t in truths],
        )
        ages = measure.ages_ms(
            [(c.received_ns, c.chunk.stamp_ns) for c in chunks],
            [
                (s.received_ns, s.trajectory.start_ns)
                for s in sent
                if self._arm_names[0] in s.trajectory.joints
            ],
        )
        traces = self._traces(operator, begun_ns, ended_ns)
        return Played(
            plan=plan,
            begun_ns=begun_ns,
            ended_ns=ended_ns,
            said=tuple(self._said),
            success=success,
            time_s=time_s,
            interrupted_by=tuple(self._interrupted),
            answers=judged,
            chunks=len(chunks),
            ages_ms=ages,
            inference_ms=[c.inference_s * 1e3 for c in chunks],
            real_time_factor=_real_time_factor(truths),
            jerk={}
            if traces is None
            else {kind: measure.Squares.of(traces.jerk(kind, self._arm_names)) for kind in measure.KINDS},
            traces=traces,
        )

    def _traces(self, operator: Operator, begun_ns: int, ended_ns: int) -> measure.Traces | None:
        sent = [s.trajectory for s in operator.sent if begun_ns <= s.received_ns <= ended_ns]
        states = [j for j in operator.joints if begun_ns - 10**8 <= j.stamp_ns <= ended_ns]
        rising = [a for a, b in pairwise(states) if a.stamp_ns < b.stamp_ns]
        if not rising:
            return None
        names = operator.contract.joint_names
        measured = Trajectory(
            names,
            np.array([state.stamp_ns for state in rising]),
            np.stack([state.positions for state in rising]),
            np.stack([state.velocities for state in rising]),
        )
        return measure.traces(sent, measured, names, ended_ns)


def _real_time_factor(truths: list[GroundTruth]) -> float | None:
    """Return simulated time over the time of the stamps' clock, which falls behind if the simulator is too
    slow."""
    if len(truths) < 2:
        return None
    elapsed_s = (stamp_ns(truths[-1].header.stamp) - stamp_ns(truths[0].header.stamp)) * 1e-9
    return (truths[-1].elapsed_s - truths[0].elapsed_s) / elapsed_s if elapsed_s > 0 else None
