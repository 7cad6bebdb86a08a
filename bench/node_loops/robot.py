"""The robot: its joints are exactly where they were commanded, and it reports them."""

from __future__ import annotations

import time
from typing import Any

from node_loops.running import Port
from node_loops.setting import JOINTS, JOINTS_HZ, Setting
from vla_accel_ros.sensing.force_slot import ForceReader, ForceWriter


def run(port: Port, setting: Setting) -> dict[str, Any]:
    """Joint states at JOINTS_HZ, as rows of float64 in a slot."""
    commands, joints = ForceReader(setting.commands), ForceWriter(setting.joints, len(JOINTS))
    position: tuple[float, ...] = (0.0,) * len(JOINTS)
    port.ready()
    for _ in port.ticks(JOINTS_HZ):
        position = ([position] + [sample for _, sample in commands.read()])[-1]
        joints.write(position, time.time_ns())
    joints.close()
    return {}
