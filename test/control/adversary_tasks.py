"""The tasks of an episode, as clients of run_policy give them: begun, preempted, cancelled, done, ended by
their time or another instruction, and refused; and a gripper that is moved by the goals of an action, whose
server vanishes, whose goals fail, and which holds an object."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from adversary_person import SLACK_NS, Person
from adversary_scene import MS, Robot, S
from adversary_ways import lasting
from world import Process

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.contract.parts import Controller, FollowingError, Joint
from vla_accel_ros.control.orders.runs import ENDED, LONGEST_PROMPT, TIMEOUT, Run, Runs
from vla_accel_ros.types import Chunk

FINGER = Joint("finger", 0.0, 0.08, 0.1, 1.0, "absolute", following_error=FollowingError(math.inf, 0.2))
GRIPPER = Controller("gripper/goals", ("finger",), "gripper_command", 20.0, "gripper/gripper_cmd")
RESOLUTION = 0.01
"""Share of the range that a goal may lead further than the speed."""


class Gripper:
    """Its action, and the finger, which moves at its speed at most and may be held back by an object."""

    def __init__(self, tasks: Tasks, period_s: float) -> None:
        self._tasks, self._period_s = tasks, period_s
        self.position, self._moved_ns = tasks.apart_tasks.uniform(0.0, FINGER.upper), tasks.t_ns
        self._goal: float | None = None
        self._last: float | None = None  # goal that the next one may differ from by one period's motion
        self._ends_ns = 0
        self.failure = ""

    @property
    def problem(self) -> str:
        """See GripperAction."""
        absent = self._tasks.active("no gripper")
        if absent:
            self._last = None
        return "nobody serves gripper/gripper_cmd" if absent else ""

    @property
    def busy(self) -> bool:
        """See GripperAction."""
        return self._tasks.t_ns < self._ends_ns

    def send(self, position: np.ndarray) -> None:
        """Judge a goal, and go there."""
        tasks, goal, rng = self._tasks, float(position[0]), self._tasks.apart_tasks
        if self.busy:
            tasks.broke("a goal for a gripper that has one")
        if tasks.active("no gripper"):
            tasks.broke("a goal for a gripper that is not there")
        tasks.sends_nothing_now()
        span = FINGER.upper - FINGER.lower
        if not FINGER.lower - 1e-3 * span <= goal <= FINGER.upper + 1e-3 * span:
            tasks.broke("a gripper's goal beyond its range", 1.0 + abs(goal) / span)
        furthest = 1.001 * max(FINGER.velocity * self._period_s, RESOLUTION * span)
        if self._last is not None and abs(goal - self._last) > furthest:
            tasks.broke("a gripper's goal further than its speed", abs(goal - self._last) / furthest)
        self._last = self._goal = goal
        fails = tasks.active("gripper fails")
        self.failure = "the goal was aborted" if fails else ""
        self._ends_ns = tasks.t_ns + round(rng.uniform(0.0, 0.02 if fails else 0.4) * S)

    def cancel(self) -> None:
        """See GripperAction."""
        self._ends_ns = min(self._ends_ns, self._tasks.t_ns + 10 * MS)

    def close(self) -> None:
        """See GripperAction."""
        self._ends_ns = self._tasks.t_ns

    def feel(self) -> float:
        """Where the finger is now."""
        now_ns = self._tasks.t_ns
        reach = FINGER.velocity * (now_ns - self._moved_ns) * 1e-9
        self._moved_ns = now_ns
        if self._goal is not None and not self._tasks.active("object"):
            self.position += float(np.clip(self._goal - self.position, -reach, reach))
        return self.position


class Tasks(Person):
    """With them, in episodes in which their faults may come. apart_tasks: decides here, so that other faults
    come as they would without these. gripped: whether there is a gripper, which hands have not here."""

    gripper: Gripper | None = None
    _timed_out: Run | None = None

    def _reached(self, robot: Robot) -> Robot:
        self.apart_tasks = random.Random(f"tasks {self.seed}")
        self._given = list[tuple[Process, Run]]()
        self._goes_on()
        robot = super()._reached(robot)
        self.gripped = self._may_grip and self.apart_tasks.random() < 0.4
        return replace(robot, chunks_from="topic") if self.gripped else robot

    @property
    def _may_grip(self) -> bool:
        return bool(set(self.faults) & set(TASKS))

    @property
    def _controller_of_gripper(self) -> Controller:
        period_s = self.robot.period_s
        return GRIPPER if self.robot.kind == "joint_trajectory" else replace(GRIPPER, rate_hz=1.0 / period_s)

    def _contract(self) -> Contract:
        contract = super()._contract()
        if not self.gripped:
            return contract
        controllers = (*contract.controllers, self._controller_of_gripper)
        return replace(contract, joints=(*contract.joints, FINGER), controllers=controllers)

    def _line(self, controller: Controller) -> Any:
        if controller.kind != "gripper_command":
            return super()._line(controller)
        position = FINGER.upper / 2 if self.gripper is None else self.gripper.position
        self.gripper = Gripper(self, 1.0 / controller.rate_hz)
        self.gripper.position = position
        return self.gripper

    def _measured(self, position: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
        names, position = super()._measured(position)
        if self.gripper is None:
            return names, position
        return (*names, FINGER.name), np.append(position, self.gripper.feel())

    def _made(self) -> Chunk:
        chunk = super()._made()
        if not self.gripped:
            return chunk
        rows = len(chunk.actions)
        goal = 0.5 * FINGER.upper * (1.0 + math.sin(3.0 * self.t_ns * 1e-9))
        if self.active("wild"):
            goal *= self.apart_tasks.choice((-3.0, 10.0, 1e5))
        column = np.full((rows, 1), goal, np.float32)
        return replace(chunk, actions=np.hstack([chunk.actions, column]))

    def _meet_person(self) -> None:
        super()._meet_person()
        if self.gripped and self.robot.kind == "joint_trajectory":
            self._every(round(S / GRIPPER.rate_hz), self._tick)

        if set(self.faults) & set(TASKS) and self.apart_tasks.random() < 0.5:
            self._at(S // 2, self._work)

    def _work(self) -> None:
        """A client that is always at it."""
        rng = self.apart_tasks
        self._at(self.t_ns + round(rng.uniform(0.05, 1.5) * S), self._work)
        rng.choice((self.begin_task, self.begin_task, self.cancel_task, self.complete_task, self.instruct))(
            ""
        )

    def broke(self, what: str, by: float = 2.0) -> None:
        """A limit of the gripper's is broken."""
        self._break(what, by)

    def sends_nothing_now(self) -> None:
        """Unless it may."""
        self._check_silence()

    def begin_task(self, name: str) -> None:
        """A client gives a goal, mostly while another runs; some goals mean nothing."""
        rng = self.apart_tasks
        prompt = rng.choice(("fold",) * 8 + (" ", "x" * (LONGEST_PROMPT + 1)))
        timeout_s = rng.choice((0.0, 0.0, 0.0, 0.3, 2.0, 2.0, -1.0, math.nan))

        def give() -> None:
            runs = self.node.motion.runs
            before, run = runs.run, runs.begin(prompt, timeout_s)
            self._given.append((self.node, run))
            if run.ending is None and not (prompt == prompt.strip() != "" and timeout_s >= 0.0):
                self._break("a goal that means nothing has begun")
            if run.ending is None and before is not None and before.ending is None:
                self._break("a goal whose place was taken has not ended")
            if run.ending is not None and runs.run is not before:
                self._break("a goal that was refused ended another")
            if run.ending is None:
                self._goes_on()

        self._input("task", give)

    def _on_run(self, act: Callable[[Runs, Run], None]) -> None:
        """Act on one of the newest goals of the process, which may have ended."""

        def give() -> None:
            runs = self.node.motion.runs
            if given := [run for process, run in self._given[-2:] if process is self.node]:
                run = self.apart_tasks.choice(given)
                self._over |= run is runs.run
                act(runs, run)

        self._input("task", give)

    def cancel_task(self, name: str) -> None:
        """A client cancels."""
        self._on_run(Runs.cancel)

    def complete_task(self, name: str) -> None:
        """The task is done."""
        self._on_run(lambda runs, run: runs.complete(run, "done"))

    def instruct(self, name: str) -> None:
        """Somebody else gives an instruction, or withdraws one."""
        text = self.apart_tasks.choice(("wave", ""))

        def give() -> None:
            self.node.motion.runs.hear(text)
            if text:
                self._goes_on()

        self._input("task", give)

    def _goes_on(self) -> None:
        """Somebody has said that the robot may move."""
        self._over, self._ended_ns, self._stood = False, -1, np.zeros(0)

    def _start(self, go_on: bool = True) -> Process:
        self._goes_on()
        return super()._start(go_on)

    def _act(self) -> None:
        if not self.node.active:
            self._goes_on()
        super()._act()

    def node_watch(self) -> None:
        super().node_watch()
        for process, run in self._given[-1:]:
            if process is self.node and _is_over(run) and run is not self._timed_out:
                self._over, self._timed_out = True, run
        self._judge_tasks()

    def _judge_tasks(self) -> None:
        """A robot whose goal has ended stands until somebody goes on."""
        node = self.node
        quiet = self._over and node.active and self.robot.stamped and not self.off
        quiet = (
            quiet
            and not set(node.holds) - {ENDED}
            and self.robot.kind == "joint_trajectory"
            and not self.active("reactivate")
        )
        joining = node.robot.follower.joining.until_ns + SLACK_NS > self.now_ns()
        if not quiet or joining or self.t_ns <= self.goal_ends_ns:
            self._ended_ns, self._stood = -1, np.zeros(0)
            return
        if self._ended_ns < 0:
            brake_ns = round(self._longest_s * S) + 2 * node.robot.kept_ns + SLACK_NS
            self._ended_ns = max(self.t_ns, self.arrivals_ns) + brake_ns
        position = self.controller.state(self.t_ns).position
        if self.t_ns < self._ended_ns or self._stood.shape != position.shape:
            self._stood = position
        elif np.abs(position - self._stood).max() > 1e-6:
            self._break("moved after its goal had ended")


def _is_over(run: Run) -> bool:
    return run.ending is not None and run.ending.reason == TIMEOUT


TASKS: dict[str, Callable[[Any, str], None]] = {
    "task": Tasks.begin_task,
    "task preempted": Tasks.begin_task,
    "task cancelled": Tasks.cancel_task,
    "task done": Tasks.complete_task,
    "instruction": Tasks.instruct,
    "no gripper": lasting(1.0),
    "gripper fails": lasting(1.0),
    "object": lasting(1.0),
}
