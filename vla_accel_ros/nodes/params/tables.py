"""The tables of all nodes, by the node's name, for code that reads or checks every table."""

from __future__ import annotations

from vla_accel_ros.nodes.params.cameras import CAMERA, SIM_ROBOT
from vla_accel_ros.nodes.params.fleet_scheduler import FLEET_SCHEDULER
from vla_accel_ros.nodes.params.inference import INFERENCE
from vla_accel_ros.nodes.params.parameter import Parameter
from vla_accel_ros.nodes.params.recorder import RECORDER
from vla_accel_ros.nodes.params.trajectory import TRAJECTORY

NODES: dict[str, tuple[Parameter, ...]] = {
    "inference": INFERENCE,
    "trajectory": TRAJECTORY,
    "sim_robot": SIM_ROBOT,
    "camera": CAMERA,
    "recorder": RECORDER,
    "fleet_scheduler": FLEET_SCHEDULER,
}
