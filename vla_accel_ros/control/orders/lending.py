"""Hands the robot over to others and takes it back: ~/release and ~/reclaim.

Two nodes that drive one controller at once fight over the robot. So this one always comes to rest first, and
sends nothing until it has the controllers back. MoveIt, or anyone else, takes over by our silence alone, or
the controller manager activates controllers of its choice in place of ours (Options.switches). ~/reclaim
switches back what was switched, whatever the parameters say by then: the robot may be released longer than
this process lives. A controller manager that does not answer in time may switch at any time later, so the
robot is released then, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

from vla_accel_ros.control.following.watchdog import RELEASED
from vla_accel_ros.control.orders.homing import INACTIVE
from vla_accel_ros.control.orders.order import Steps, come_to_rest, kept, until_at_rest
from vla_accel_ros.control.robot import Robot


class Manager(Protocol):
    """The controller manager."""

    @property
    def controllers(self) -> tuple[str, ...]:
        """Names of the contract's controllers that it can switch."""
        ...

    def switch(self, activate: Sequence[str], deactivate: Sequence[str], sure: bool = True) -> str:
        """Activate and deactivate controllers; empty if it did, else a sentence. sure: none of it is done
        yet. Raises TimeoutError if it has not answered, so that nobody knows whether it did or will."""
        ...


class Commander(Enum):
    """Who may command the controllers."""

    OURS = "ours"
    RELEASING = "being released"
    RELEASED = "released"


class Lending:
    """Who commands the controllers."""

    def __init__(self, robot: Robot, manager: Manager) -> None:
        self._robot, self._manager = robot, manager
        self._commander = Commander.RELEASED if robot.holds.released else Commander.OURS

    def release(self) -> Steps:
        """Stop, come to rest, stop sending, and hand over."""
        robot, holds, options = self._robot, self._robot.holds, self._robot.options
        if self._commander is not Commander.OURS:
            return self._commander is Commander.RELEASED, self._already
        self._commander = Commander.RELEASING
        if not (yield from come_to_rest(robot, RELEASED)):
            self._commander = Commander.OURS
            return False, INACTIVE
        activate = [name.strip() for name in options.release_to.split(",") if name.strip()]
        deactivate = list(self._manager.controllers)
        if options.switches:
            # Recorded before it is done: a process that dies meanwhile cannot know whether it was.
            holds.switch(activate, deactivate, sure=False)
            yield from kept(robot)
            try:
                problem = self._manager.switch(activate, deactivate)
            except TimeoutError as late:
                self._commander = Commander.RELEASED
                return False, (
                    f"{late}; released, for it may still switch: ~/reclaim takes the controllers back"
                )
            if problem:
                self._commander = Commander.OURS
                holds.switch([], [])
                robot.go_on(RELEASED)
                return False, f"{problem}; going on"
            holds.switch(activate, deactivate)
        self._commander = Commander.RELEASED
        unwritten = yield from kept(robot)
        return True, f"released; ~/reclaim takes the controllers back{unwritten}"

    def reclaim(self) -> Steps:
        """Take the controllers back and continue from the measured position. Others' controllers are not
        switched off in motion."""
        robot, holds = self._robot, self._robot.holds
        if self._commander is not Commander.RELEASED:
            return self._commander is Commander.OURS, self._already
        switched = holds.switched
        if switched:
            robot.settle()
            if not (yield from until_at_rest(robot)):
                return False, f"{INACTIVE}; still released"
            if moving := robot.moving:
                return False, f"{moving}: let them come to rest first; still released"
        if switched:
            try:
                problem = self._manager.switch(switched["off"], switched["on"], switched["sure"])
            except TimeoutError as late:
                holds.switch(switched["on"], switched["off"], sure=False)
                problem = f"{late}, and may still switch: call ~/reclaim again"
            except (KeyError, TypeError, ValueError) as error:
                problem = f"cannot switch the controllers back: {error}"
            if problem:
                return False, f"{problem}; still released"
        self._commander = Commander.OURS
        holds.switch([], [])
        robot.go_on(RELEASED)
        robot.open()
        yield from kept(robot)
        reasons = "; ".join(holds.holds)
        return True, f"ours, and held: {reasons}" if reasons else "going on from where the joints are"

    @property
    def is_lent(self) -> bool:
        """Whether others have the controllers, and nothing is sent."""
        return self._commander is Commander.RELEASED

    @property
    def _already(self) -> str:
        return f"the controllers are {self._commander.value} already"
