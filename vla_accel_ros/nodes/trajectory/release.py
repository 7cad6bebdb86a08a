"""Hands the robot over to others and takes it back: ~/release and ~/reclaim of the trajectory node.

Two nodes that drive one controller at once fight over the robot. So this one always comes to rest first, and
sends nothing until it has the controllers back. MoveIt, or anyone else, takes over by our silence alone
(release_by: pause), or the controller manager activates controllers of its choice in place of ours (switch).
~/reclaim switches back what was switched, whatever the parameters say by then: the robot may be released
longer than this process lives. A controller manager that does not answer in time may switch at any time
later, so the robot is released then, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from std_srvs.srv import Trigger

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.contract.controller_check import node_of
from vla_accel_ros.contract.parts import SERVO
from vla_accel_ros.nodes.brief import brief
from vla_accel_ros.nodes.interfaces import interface
from vla_accel_ros.nodes.service_calls import ServiceCalls
from vla_accel_ros.nodes.trajectory.hold import RELEASED, Hold

_ANSWER_S = 3.0


class Release:
    """~/release and ~/reclaim.

    hold: stops the robot and lets it continue. by: "pause" or "switch". theirs: controllers to activate while
    ours are released. manager: the controller manager's node. Raises ValueError if controller_manager_msgs is
    needed and not installed.
    """

    def __init__(
        self, hold: Hold, contract: Contract, by: str, theirs: tuple[str, ...], manager: str
    ) -> None:
        self._hold, self._theirs, self._manager = hold, theirs, manager
        self._ours = tuple(
            node_of(controller).rpartition("/")[2]
            for controller in contract.controllers
            if controller.kind not in SERVO
        )
        self._state = "released" if RELEASED in hold.holds else "ours"
        self._by_switch = by == "switch"
        if self._by_switch:
            _switch_kind()

    async def release(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        """Stop, come to rest, stop sending, and hand over."""
        if self._state != "ours":
            return say(response, self._state == "released", f"the controllers are {self._state} already")
        self._state = "being released"
        if not await self._hold.come_to_rest(RELEASED):
            self._state = "ours"
            return say(response, False, "the trajectory node is not active: activate it first")
        if self._by_switch:
            # Recorded before it is done: a process that dies meanwhile cannot know whether it was.
            self._hold.switch(list(self._theirs), list(self._ours), sure=False)
            await self._hold.kept()
            try:
                problem = self._switch(self._theirs, self._ours)
            except TimeoutError as late:
                self._state = "released"
                words = f"{late}; released, for it may still switch: ~/reclaim takes the controllers back"
                return say(response, False, words)
            if problem:
                self._state = "ours"
                self._hold.switch([], [])
                self._hold.go_on(RELEASED)
                return say(response, False, f"{problem}; going on")
            self._hold.switch(list(self._theirs), list(self._ours))
        self._state = "released"
        unwritten = await self._hold.kept()
        return say(response, True, f"released; ~/reclaim takes the controllers back{unwritten}")

    async def reclaim(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        """Take the controllers back and continue from the measured position. Others' controllers are not
        switched off in motion."""
        if self._state != "released":
            return say(response, self._state == "ours", f"the controllers are {self._state} already")
        switched = self._hold.switched
        if switched:
            self._hold.settle()
            if await self._hold.until_at_rest() and (moving := self._hold.moving):
                return say(response, False, f"{moving}: let them come to rest first; still released")
        if switched:
            try:
                problem = self._switch(switched["off"], switched["on"], switched["sure"])
            except TimeoutError as late:
                self._hold.switch(switched["on"], switched["off"], sure=False)
                problem = f"{late}, and may still switch: call ~/reclaim again"
            except (KeyError, TypeError, ValueError) as error:
                problem = f"cannot switch the controllers back: {error}"
            if problem:
                return say(response, False, f"{problem}; still released")
        self._state = "ours"
        self._hold.switch([], [])
        self._hold.go_on(RELEASED)
        self._hold.open()
        await self._hold.kept()
        held = "; ".join(self._hold.holds)
        return say(
            response, True, f"ours, and held: {held}" if held else "going on from where the joints are"
        )

    def _switch(self, activate: Sequence[str], deactivate: Sequence[str], sure: bool = True) -> str:
        """Ask the controller manager to switch; empty if it did, else a sentence. sure: none of it is done
        yet. Raises TimeoutError if it has not answered, so that nobody knows whether it did or will."""
        kind = _switch_kind()
        request = kind.Request(
            activate_controllers=list(activate),
            deactivate_controllers=list(deactivate),
            strictness=kind.Request.STRICT if sure else kind.Request.BEST_EFFORT,
        )
        request.timeout.sec = 2
        service = f"{self._manager}/switch_controller"
        with ServiceCalls(self._hold.node) as ask:
            if not ask.is_there(kind, service, _ANSWER_S):
                return f"{service} does not answer: start the controller manager, or set release_by to pause"
            answer = ask(kind, service, request, _ANSWER_S, once=True)
        if answer is None:
            raise TimeoutError(f"{service} has not answered within {_ANSWER_S:g} s")
        if answer.ok:
            return ""
        words = f" ({answer.message})" if getattr(answer, "message", "") else ""
        return (
            f"{service} could not activate {', '.join(activate) or 'none'} and deactivate "
            f"{', '.join(deactivate) or 'none'}{words}: compare with ros2 control list_controllers"
        )


def _switch_kind() -> Any:
    return interface("controller_manager_msgs/srv/SwitchController", "release_by: switch")


def say(response: Trigger.Response, success: bool, message: str) -> Trigger.Response:
    """The response, filled with these words."""
    response.success, response.message = success, brief(message)
    return response
