"""The topic of a forward_command_controller; its message is reused. What it is sent is decided in
control/outputs/positions.py."""

from __future__ import annotations

from array import array

import numpy as np
from std_msgs.msg import Float64MultiArray

from vla_accel_ros.control.outputs.output import Output
from vla_accel_ros.control.outputs.positions import PositionOutput
from vla_accel_ros.nodes.adapters.adapter import CommandTopic, Setup


class ForwardCommandAdapter(CommandTopic):
    """A StreamChannel of positions."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup, Float64MultiArray)
        self._message = Float64MultiArray()

    @classmethod
    def make(cls, setup: Setup) -> Output:
        """See Adapter."""
        return PositionOutput(setup.controller, setup.limits, cls(setup), setup.clock)

    def publish(self, command: np.ndarray, now_ns: int) -> None:
        """Publish positions, float64 [D]."""
        self._message.data = array("d", command.tobytes())
        self._publisher.publish(self._message)
