"""The robot in other hands, and back: ~/release and ~/reclaim of the trajectory node.

Two who drive one controller at once tear the robot between them, so ours always stops and stands first, and
sends nothing until it has the controllers back. MoveIt, or anyone else, takes over by our mere silence
(release_by: pause) or gets the controllers of its choice, by the controller manager, in place of ours
(switch).
"""

from __future__ import annotations

from std_srvs.srv import Trigger

from vla_accel_ros.nodes.asking import Asking
from vla_accel_ros.nodes.optional import interface
from vla_accel_ros.nodes.standing import RELEASED, Standing
from vla_accel_ros.sensing.contract import Contract
from vla_accel_ros.sensing.contract_parts import SERVO
from vla_accel_ros.sensing.controller_check import node_of

_ANSWER_S = 3.0


class Release:
    """~/release and ~/reclaim.

    standing: stops the robot and lets it go on. by: "pause" or "switch". theirs: controllers to activate
    while ours are released. manager: the controller manager's node. Raises ValueError when
    controller_manager_msgs is needed and not installed.
    """

    def __init__(
        self, standing: Standing, contract: Contract, by: str, theirs: tuple[str, ...], manager: str
    ) -> None:
        self._standing, self._theirs, self._manager = standing, theirs, manager
        self._ours = tuple(
            node_of(controller).rpartition("/")[2]
            for controller in contract.controllers
            if controller.kind not in SERVO
        )
        self._state = "ours"
        self._switch_kind = None
        if by == "switch":
            self._switch_kind = interface(
                "controller_manager_msgs", "srv", "SwitchController", "release_by: switch"
            )

    async def release(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        """Stop, stand, fall silent, and hand over."""
        if self._state != "ours":
            return say(response, self._state == "released", f"the controllers are {self._state} already")
        self._state = "being released"
        if not await self._standing.stand(RELEASED):
            self._state = "ours"
            return say(response, False, "the trajectory node is not active: activate it first")
        problem = self._switch(self._theirs, self._ours)
        if problem:
            self._state = "ours"
            self._standing.go_on(RELEASED)
            return say(response, False, f"{problem}; going on")
        self._state = "released"
        return say(response, True, "released; ~/reclaim takes the controllers back")

    def reclaim(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        """Take the controllers back and go on from where the joints are."""
        if self._state != "released":
            return say(response, self._state == "ours", f"the controllers are {self._state} already")
        problem = self._switch(self._ours, self._theirs)
        if problem:
            return say(response, False, f"{problem}; still released")
        self._state = "ours"
        self._standing.go_on(RELEASED)
        return say(response, True, "going on from where the joints are")

    def _switch(self, activate: tuple[str, ...], deactivate: tuple[str, ...]) -> str:
        """Empty when the controller manager did it, or is not to; else the sentence."""
        if self._switch_kind is None:
            return ""
        request = self._switch_kind.Request(
            activate_controllers=list(activate),
            deactivate_controllers=list(deactivate),
            strictness=self._switch_kind.Request.STRICT,
        )
        request.timeout.sec = 2
        service = f"{self._manager}/switch_controller"
        with Asking(self._standing.node) as ask:
            answer = ask(self._switch_kind, service, request, _ANSWER_S, once=True)
        if answer is None:
            return f"{service} does not answer: start the controller manager, or set release_by to pause"
        if answer.ok:
            return ""
        words = f" ({answer.message})" if getattr(answer, "message", "") else ""
        return (
            f"{service} could not activate {', '.join(activate) or 'none'} and deactivate "
            f"{', '.join(deactivate) or 'none'}{words}: compare with ros2 control list_controllers"
        )


def say(response: Trigger.Response, success: bool, message: str) -> Trigger.Response:
    """The response with these words."""
    response.success, response.message = success, message
    return response
