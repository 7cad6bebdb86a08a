"""The person of an episode, who takes the arm over and gives it back, by services or by a button, and whose
commands are late, wild, of another shape, repeated or frozen; who leaps, lets go, or dies."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from adversary_orders import Orders
from adversary_scene import ANGULAR, LINEAR, Robot, S
from adversary_ways import lasting
from world import Process

from vla_accel_ros.contract.parts import Deadman, Teleop

COMMAND_HZ, JOY_HZ = 50, 20
SLACK_NS = S // 2


class Person(Orders):
    """With them, for robots of episodes in which their faults may come. switches: how often the arm changed
    hands."""

    switches = _human_ns = 0

    def _reached(self, robot: Robot) -> Robot:
        robot = super()._reached(robot)
        rng = self.person = random.Random(f"person {self.seed}")
        if not set(self.faults) & set(PERSON):
            return robot
        kind, age_s = rng.choice(("JointState", "JointState", "JointJog")), rng.uniform(0.12, 0.6)
        if robot.kind == "servo_twist":
            kind = "TwistStamped"
        names = {name: f"leader_{name}" for name in robot.joints}
        if len(names) > 1 and rng.random() < 0.3:
            del names[robot.joints[-1]]  # which the leader has not
        deadman = Deadman("joy", 2) if rng.random() < 0.4 else None
        return replace(robot, teleop=Teleop("leader", COMMAND_HZ, age_s, names, kind, deadman=deadman))

    def _start(self, go_on: bool = True) -> Process:
        before = getattr(self, "node", None)
        process = super()._start(go_on)
        if before is not None and process.motion.holds.human != before.motion.holds.human:
            self._break("a restart gave the arm to somebody else")
        return process

    def _meet_person(self) -> None:
        """Have the person act from now on."""
        if self.robot.teleop is None:
            return
        array = np.random.default_rng(self.seed + 1)
        count = self._rates if self.robot.kind == "servo_twist" else len(self.robot.joints)
        self._paces, self._phases = array.uniform(0.5, 5.0, count), array.uniform(0.0, 6.0, count)
        self._reach, self._pressed, self._frozen = (
            self.person.choice((0.1, 0.4, 1.1)),
            False,
            (0, np.zeros(0)),
        )
        self._quiet: tuple[int, np.ndarray] | None = None
        self._every(S // COMMAND_HZ, self._say)
        if self.robot.teleop.deadman is not None:
            self._every(S // JOY_HZ, self._report_button)

    def _say(self) -> None:
        if self.active("person dies"):
            return
        teleop, limits, rng = self.robot.teleop, self.robot.limits, self.person
        assert teleop is not None
        wave = np.sin(self.t_ns * 1e-9 * self._paces + self._phases)
        stamp_ns = self.now_ns() - round(rng.uniform(0.0, 0.03) * S)
        span = limits.span
        if teleop.type == "TwistStamped":
            span = np.repeat((LINEAR, ANGULAR), 3)
            numbers = self._reach * span * wave
        elif teleop.type == "JointJog":
            numbers = self._reach * limits.velocity * wave
        else:
            numbers = (limits.upper + limits.lower) / 2 + self._reach * limits.span / 2 * wave
        if self.active("commands leap"):
            numbers = numbers + rng.choice((-1.0, 1.0)) * rng.uniform(0.0, 0.6) * span
        if self.active("commands late"):
            stamp_ns -= round(rng.uniform(0.0, 1.0) * S)
        if self.active("commands stamped"):
            stamp_ns += round(rng.choice((-100.0, -0.2, 0.05, 5.0)) * S)
        names = [teleop.joints.get(name, "other") for name in self.robot.joints]
        if teleop.type == "TwistStamped":
            names = ["base"]  # its frame
        if self.active("commands wild"):
            names, numbers = self._wild_command(names, numbers)
        if self.active("commands frozen"):
            stamp_ns, numbers = self._frozen
        self._frozen = stamp_ns, numbers

        def give() -> None:
            self.newest_command_ns = max(self.newest_command_ns, min(stamp_ns, self.now_ns()))
            self.node.command(names, numbers, stamp_ns)

        for _ in range(rng.choice((1, 1, 3)) if self.active("commands doubled") else 1):
            self._input("command", give)

    def _wild_command(self, names: list[str], numbers: np.ndarray) -> tuple[list[str], np.ndarray]:
        rng = self.person
        how, wild = rng.choice(("nan", "inf", "huge", "short", "unnamed", "empty", "degrees")), numbers.copy()
        column = rng.randrange(len(wild))
        if how in ("nan", "inf"):
            wild[column] = np.nan if how == "nan" else np.inf
        elif how == "huge":
            wild[column] = rng.choice((1e5, -1e300))
        elif how == "short":
            wild = wild[:-1]
        elif how == "unnamed":
            names = [*names[:-1], "stranger"]
        elif how == "empty":
            names, wild = [], wild[:0]
        else:
            wild = np.degrees(wild)
        return names, wild

    def _report_button(self) -> None:
        if self.active("deadman silent"):
            return
        buttons, stamp_ns = [0, 0, int(self.active("deadman"))], self.now_ns()
        if self.active("commands wild"):
            del buttons[1:]
        self._input("button", lambda: self.node.press(buttons, stamp_ns))

    def node_watch(self) -> None:
        human = self.node.motion.holds.human
        super().node_watch()
        self._judge_person(human)

    def _judge_person(self, human: bool) -> None:
        """An arm that a person has does not move while the person says nothing, whatever the policy does."""
        teleop = self.robot.teleop
        quiet = human and self.node.motion.holds.human and self.node.active and teleop is not None
        silent_ns = self.now_ns() - self.newest_command_ns
        quiet = quiet and self.robot.kind == "joint_trajectory" and not self.active("reactivate")
        quiet = quiet and not self.off and not self.node.holds and self.robot.stamped
        quiet = quiet and self.t_ns > self.goal_ends_ns  # also of a process that has ended since
        brake_ns = round(self._longest_s * S) + 2 * self.node.robot.kept_ns + SLACK_NS
        joining = self.node.robot.follower.joining.until_ns + brake_ns > self.now_ns()
        self._human_ns = self._human_ns if human else self.t_ns
        quiet = quiet and self.t_ns - self._human_ns > brake_ns  # a silent person who takes it stops it first
        if not quiet or teleop is None or joining or silent_ns < teleop.max_age_s * S + brake_ns:
            self._quiet = None
            return
        position = self.controller.state(self.t_ns).position
        if self._quiet is None:
            self._quiet = self.t_ns, position
        elif self.t_ns - self._quiet[0] < S // 5:
            pass  # what was sent by a process before, or was held up, ends
        elif self._quiet[1].shape != position.shape or np.abs(position - self._quiet[1]).max() > 1e-6:
            self._break("moved while the person who commands it said nothing")

    def take_over(self, name: str) -> None:
        """~/take_over, or the button pressed; mostly given back later."""
        if self.robot.teleop is None:
            return
        if self.robot.teleop.deadman is not None and self.person.random() < 0.7:
            self.until["deadman"] = self.t_ns + round(self.person.uniform(0.1, 2.0) * S)
            return
        self._input("order", lambda: self.node.order("take_over"))
        if self.person.random() < 0.7:
            self._at(self.t_ns + round(self.person.uniform(0.0, 2.0) * S), lambda: self.give_back(name))

    def give_back(self, name: str) -> None:
        """~/give_back."""
        self._input("order", lambda: self.node.order("give_back"))


PERSON: dict[str, Callable[[Any, str], None]] = {
    "take over": Person.take_over,
    "give back": Person.give_back,
    "deadman silent": lasting(1.0),
    "person dies": lasting(2.0),
    "commands late": lasting(1.0),
    "commands leap": lasting(1.0),
    "commands stamped": lasting(0.5),
    "commands wild": lasting(1.0),
    "commands frozen": lasting(1.0),
    "commands doubled": lasting(1.0),
}
