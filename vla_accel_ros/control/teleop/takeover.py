"""Who commands the arm, the policy or a person, and how the arm follows the person.

~/take_over, or the deadman's button, hands the arm to the person, and ~/give_back, or the button let go, to
the policy. Neither takes a hold back: held stays held, released stays released, by whoever commands.
What the person commands joins the motion that was sent, as a chunk does, so the limits hold both ways, and
nothing is executed longer than the age limit of the person's commands. The policy goes on with chunks that
were observed after the arm was given back.

First the arm is *aligned*: it goes to where the leader arm is at a share of its speed (`move_speed`), and
does so again when the two are far apart later. A joint that may be held back, a gripper, stays as it is until
the leader's has come to the same place: what it holds is not dropped because a person takes over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vla_accel_ros.control.following.watchdog import DEADMAN, TELEOP
from vla_accel_ros.control.orders.order import Steps, kept
from vla_accel_ros.control.robot import Robot
from vla_accel_ros.control.teleop.commands import Commands, Teleop
from vla_accel_ros.control.teleop.hand import HandCommands, TwistCommands

HUMAN, ALIGNING = "human", "aligning"
"""What is reported while a person moves the arm."""
NO_TELEOP = "the contract names nothing that a person commands the arm by: add teleop to it"
_STEP_NS = 20_000_000
_LONGEST_NS = 1_000_000_000
_LEAST_NS = 15_000_000
_ALIGNED_OF_RANGE, _MET_OF_RANGE = 0.02, 0.05
_APART_S = 0.5
"""The arm is aligned again if it is behind by more than its limit goes in this time."""


class Takeover:
    """Who commands the arm of a robot. teleop: of its contract, None if nobody may take over."""

    def __init__(self, robot: Robot, teleop: Teleop | None) -> None:
        self._robot, self._teleop = robot, teleop
        self._commands: Commands | TwistCommands | None = None
        self._stay: np.ndarray | None = None  # where joints stay that the person does not move
        if teleop is not None:
            joints = robot.contract.action_joints
            names = tuple(joint.name for joint in joints)
            limits = robot.follower.buffer.limits
            self._commands = Commands(teleop, names, limits)
            if robot.contract.twist is not None:
                (frame,) = (c.frame for c in robot.contract.controllers if c.kind == "servo_twist")
                self._commands = TwistCommands(teleop.topic, robot.contract.twist, len(joints), frame)
            elif teleop.hand is not None:
                self._commands = HandCommands(teleop.topic, teleop.hand, limits)
            self._yielding = np.array([math.isinf(joint.following.rad) for joint in joints], bool)
            self._met = ~self._yielding
            self._side = np.zeros(len(joints))  # of the leader's joint: above or below ours
        self.begin()

    def begin(self) -> None:
        """Motion begins anew: whoever commanded the arm still does."""
        self._pressed, self._pressed_ns = False, 0
        if self._commands is not None:
            self._commands.forget()
            self._hand_to(self._robot.holds.human)

    @property
    def state(self) -> str:
        """HUMAN or ALIGNING while a person moves the arm, else empty."""
        if not (self._robot.holds.human and self._robot.follower.runs):
            return ""
        return HUMAN if self._aligned else ALIGNING

    def take_over(self) -> Steps:
        """Follow the person's commands from now on."""
        if self._teleop is None:
            return False, NO_TELEOP
        self._switch(True)
        unwritten = yield from kept(self._robot)
        streams = self._robot.follower.safety.watchdog.late(self._robot.clock.now_ns())
        reasons = "; ".join([*self._robot.holds.holds, *map(str, streams)])
        words = f"held: {reasons}" if reasons else "~/give_back returns it"
        return True, f"the arm follows {self._teleop.topic}; {words}{unwritten}"

    def give_back(self) -> Steps:
        """Follow chunks again."""
        self._switch(False)
        unwritten = yield from kept(self._robot)
        reasons = "; ".join(self._robot.holds.holds)
        return True, f"the policy has the arm{f'; held: {reasons}' if reasons else ''}{unwritten}"

    def press(self, buttons: Sequence[int], stamp_ns: int) -> None:
        """The deadman's button is reported, among others. Only a person who lets go of it gives the arm back:
        one whose reports had ended before may be gone."""
        assert self._teleop is not None and self._teleop.deadman is not None
        deadman = self._teleop.deadman
        if deadman.button >= len(buttons):
            refusal = (
                f"{deadman.topic} has {len(buttons)} buttons: fix teleop.deadman.button = {deadman.button}"
            )
            self._robot.refuse(DEADMAN, ValueError(refusal))
        pressed = deadman.button < len(buttons) and buttons[deadman.button] > 0
        if pressed:
            self._robot.follower.safety.watchdog.seen(DEADMAN, stamp_ns)
            if not self._pressed:
                self._switch(True)
            self._pressed_ns = stamp_ns
        elif self._pressed and 0 <= stamp_ns - self._pressed_ns <= self._teleop.max_age_s * 1e9:
            self._switch(False)
        self._pressed = pressed

    def command(self, names: Sequence[str], numbers: Any, stamp_ns: int) -> None:
        """A person's command has come. It is refused, with a line for the log, if it cannot be meant."""
        commands, robot = self._commands, self._robot
        assert commands is not None
        watchdog = robot.follower.safety.watchdog
        if commands.stamp_ns - _LONGEST_NS < stamp_ns <= commands.stamp_ns:
            return  # repeated, or overtaken
        try:
            commands.add(names, numbers, stamp_ns)
        except ValueError as refusal:
            robot.refuse(TELEOP, refusal)
            watchdog.note(TELEOP, "commands are refused", f": {refusal}")
            return
        watchdog.seen(TELEOP, stamp_ns)
        now_ns = robot.clock.now_ns()
        if robot.holds.human and robot.follower.runs and not watchdog.late(now_ns):
            try:
                self._steer(now_ns)
            except ValueError as refusal:  # a hand may not go there
                robot.refuse(TELEOP, refusal)

    def look(self) -> None:
        """Look whether the arm stands; every tick."""
        if self._teleop is None or not self._robot.holds.human:
            return
        if not self._robot.follower.runs:
            self._stay = None
            self._aligned = False
        watchdog = self._robot.follower.safety.watchdog
        for stream in watchdog.late(self._robot.clock.now_ns()):
            if stream.name == TELEOP and not stream.note:
                watchdog.note(TELEOP, f"nothing comes on {self._teleop.topic}: look at its driver")
            elif stream.name == DEADMAN and self._teleop.deadman is not None:
                words = f"hold button {self._teleop.deadman.button} on {self._teleop.deadman.topic}"
                watchdog.note(DEADMAN, f"{words}, or call ~/give_back")

    def _switch(self, human: bool) -> None:
        if human != self._robot.holds.human:
            self._robot.holds.hand_to(human)
            self._robot.beginning += 1
            self._hand_to(human)

    def _hand_to(self, human: bool) -> None:
        assert self._teleop is not None
        self._aligned, self._steered_ns = False, 0
        self._stay = None
        inputs = (TELEOP,) if self._teleop.deadman is None else (TELEOP, DEADMAN)
        self._robot.follower.hand_to(inputs if human else (), self._robot.clock.now_ns())

    def _steer(self, now_ns: int) -> None:
        """Send what the newest command means."""
        assert self._commands is not None and self._commands.newest is not None and self._teleop is not None
        if 0 <= now_ns - self._steered_ns < _LEAST_NS:
            return
        self._steered_ns = now_ns
        follower = self._robot.follower
        buffer, limits = follower.buffer, follower.buffer.limits
        commit_ns = buffer.commit_ns(now_ns)
        position, velocity = buffer.reference(commit_ns)
        if self._stay is None:
            brake = velocity * np.abs(velocity) / (2.0 * limits.acceleration)
            self._stay = np.clip(position + brake, limits.lower, limits.upper)
            self._met, self._side = ~self._yielding, 0.0 * position
        end_ns = min(self._commands.stamp_ns, now_ns) + round(self._teleop.max_age_s * 1e9)
        count = -(-min(end_ns - commit_ns, _LONGEST_NS) // _STEP_NS)
        times_s = np.arange(1, max(count, 1) + 1)[:, None] * _STEP_NS * 1e-9
        goals, speed = self._goals(position, now_ns, times_s)
        reach = speed * limits.velocity * times_s
        positions = np.clip(position + np.clip(goals - position, -reach, reach), limits.lower, limits.upper)
        twist = self._commands.newest if self._robot.contract.twist is not None else None
        self._robot.outputs.send(follower.steer(positions, _STEP_NS, end_ns, now_ns, twist), now_ns)

    def _goals(self, position: np.ndarray, now_ns: int, times_s: np.ndarray) -> tuple[np.ndarray, float]:
        """Where the joints are to be at times [H, 1], float64 [H, D], and the share of their speed with which
        they may go there."""
        commands, stay = self._commands, self._stay
        assert commands is not None and commands.newest is not None and stay is not None
        if commands.by_velocity:
            self._aligned = True
            rows = commands.rows(position, times_s)
            if commands.trouble:
                self._robot.warn_sometimes("hand", commands.trouble)
            return np.where(commands.moves, rows, stay), 1.0
        limits = self._robot.follower.buffer.limits
        goal = limits.near(commands.newest, position)
        self._meet(goal)
        present, _ = self._robot.follower.buffer.reference(now_ns)
        behind, near = np.abs(goal - present), _ALIGNED_OF_RANGE * limits.span
        arm = commands.moves & ~self._yielding
        if not (behind > near)[arm].any():
            self._aligned = True
        elif (behind > near + _APART_S * limits.velocity)[arm].any():
            self._aligned = False
        goals = np.where(commands.moves & self._met, goal, stay)
        speed = 1.0 if self._aligned else self._robot.options.move_speed
        return np.broadcast_to(goals, (len(times_s), len(goals))), speed

    def _meet(self, goal: np.ndarray) -> None:
        """Follow the leader's joints that have come to where ours stay, or passed it."""
        assert self._stay is not None
        gap = goal - self._stay
        side = np.sign(gap)
        near = np.abs(gap) <= _MET_OF_RANGE * self._robot.follower.buffer.limits.span
        self._met |= near | (side * self._side < 0.0)
        self._side = side
