"""The controller manager, which switches controllers for ~/release and ~/reclaim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vla_accel_ros.contract.checks.controller_check import node_of
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.contract.parts import SERVO
from vla_accel_ros.nodes.interfaces import interface
from vla_accel_ros.nodes.running.lifecycle import ManagedNode
from vla_accel_ros.nodes.service_calls import ServiceCalls

_ANSWER_S = 3.0


class ControllerManager:
    """name: its node. needed: raise ValueError at once if controller_manager_msgs is not installed."""

    def __init__(self, node: ManagedNode, contract: Contract, name: str, needed: bool) -> None:
        self._node, self._name = node, name
        self.controllers = tuple(
            node_of(controller).rpartition("/")[2]
            for controller in contract.controllers
            if controller.kind not in SERVO
        )
        if needed:
            _switch_kind()

    def switch(self, activate: Sequence[str], deactivate: Sequence[str], sure: bool = True) -> str:
        """See control.lending.Manager."""
        kind = _switch_kind()
        request = kind.Request(
            activate_controllers=list(activate),
            deactivate_controllers=list(deactivate),
            strictness=kind.Request.STRICT if sure else kind.Request.BEST_EFFORT,
        )
        request.timeout.sec = 2
        service = f"{self._name}/switch_controller"
        with ServiceCalls(self._node) as ask:
            if not ask.is_there(kind, service, _ANSWER_S):
                return f"{service} does not answer: start the controller manager, or set release_by to pause"
            answer = ask(kind, service, request, _ANSWER_S, once=True)
        if answer is None:
            raise TimeoutError(
                f"{service} has not answered within {_ANSWER_S:g} s: look with ros2 control list_controllers"
            )
        if answer.ok:
            return ""
        words = f" ({answer.message})" if getattr(answer, "message", "") else ""
        return (
            f"{service} could not activate {', '.join(activate) or 'none'} and deactivate "
            f"{', '.join(deactivate) or 'none'}{words}: compare with ros2 control list_controllers"
        )


def _switch_kind() -> Any:
    return interface("controller_manager_msgs/srv/SwitchController", "release_by: switch")
