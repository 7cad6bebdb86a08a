"""Services of nodes, called by the operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rcl_interfaces.msg import SetParametersResult
from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter

from vla_accel_ros.nodes.clients.operator import Operator


def call(operator: Operator, kind: type, name: str, request: object) -> Any:
    """The answer of a service, asked once."""
    return operator.call(kind, name, request, timeout_s=180.0, once=True)


def change(operator: Operator, node: str, transition: int) -> bool:
    """Whether a lifecycle transition of a node succeeded."""
    request = ChangeState.Request(transition=Transition(id=transition))
    return call(operator, ChangeState, f"{node}/change_state", request).success


def state(operator: Operator, node: str) -> int:
    """The lifecycle state of a node."""
    return call(operator, GetState, f"{node}/get_state", GetState.Request()).current_state.id


def set_parameter(operator: Operator, node: str, name: str, value: object) -> SetParametersResult:
    """Set one parameter of a node."""
    request = SetParameters.Request(parameters=[Parameter(name, value=value).to_parameter_msg()])
    return call(operator, SetParameters, f"{node}/set_parameters", request).results[0]


def stop_cameras(operator: Operator, *names: str) -> None:
    """Silence these cameras of the simulated robot, and only these."""
    assert set_parameter(operator, "sim_robot", "stopped_cameras", ",".join(names)).successful


def settled(operator: Operator, node: str, count: Callable[[], int]) -> int:
    """How many messages there are when all have come that a node sent before this: no further one before its
    next answer. It is silent, else this does not return."""
    while True:
        count_before = count()
        state(operator, node)
        if count() == count_before:
            return count_before
