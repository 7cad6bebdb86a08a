"""A stand-in for the controller manager."""

from __future__ import annotations

from controller_manager_msgs.srv import SwitchController
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.task import Future

from vla_accel_ros.nodes.clients.operator import Operator

OURS = {"arm_controller", "gripper_controller"}
THEIRS = {"moveit_arm"}


class Manager:
    """A controller manager. active: its active controllers. refusal: words, empty to do as it is asked."""

    def __init__(self, operator: Operator) -> None:
        self.active, self.refusal = set(OURS), ""
        self._operator, self._waits = operator, Future()
        self._waits.set_result(None)
        operator.node.create_service(
            SwitchController,
            "controller_manager/switch_controller",
            self._switch,
            callback_group=ReentrantCallbackGroup(),
        )

    def pause(self) -> None:
        """Do nothing of what it is asked until `go_on`."""
        self._waits = Future()

    def go_on(self) -> None:
        """Do and answer, late, what it was asked meanwhile."""
        earlier = self.active
        self._waits.set_result(None)
        executor = self._operator.node.executor
        assert executor is not None
        executor.wake()
        self._operator.wait(lambda: self.active is not earlier, 30.0, "late switch")

    async def _switch(
        self, request: SwitchController.Request, response: SwitchController.Response
    ) -> SwitchController.Response:
        await self._waits
        off, on = set(request.deactivate_controllers), set(request.activate_controllers)
        strictly = off <= self.active and not on & self.active
        response.ok = not self.refusal and (strictly or request.strictness == request.BEST_EFFORT)
        response.message = self.refusal
        if response.ok:
            self.active = (self.active - off) | on
        return response
