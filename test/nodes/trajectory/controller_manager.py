"""A stand-in for the controller manager."""

from __future__ import annotations

from controller_manager_msgs.srv import SwitchController

from vla_accel_ros.nodes.clients.operator import Operator

OURS = {"arm_controller", "gripper_controller"}
THEIRS = {"moveit_arm"}


class Manager:
    """A controller manager. active: its active controllers. refusal: words, empty to do as it is asked."""

    def __init__(self, operator: Operator) -> None:
        self.active, self.refusal = set(OURS), ""
        operator.node.create_service(SwitchController, "controller_manager/switch_controller", self._switch)

    def _switch(
        self, request: SwitchController.Request, response: SwitchController.Response
    ) -> SwitchController.Response:
        off, on = set(request.deactivate_controllers), set(request.activate_controllers)
        strictly = off <= self.active and not on & self.active
        response.ok = not self.refusal and (strictly or request.strictness == request.BEST_EFFORT)
        response.message = self.refusal
        if response.ok:
            self.active = (self.active - off) | on
        return response
