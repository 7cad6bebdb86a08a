"""The topic of a mobile base, TwistStamped or Twist; its message is reused. What it is sent:
control/outputs/base.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from vla_accel_ros.control.outputs.base import BaseOutput
from vla_accel_ros.control.outputs.output import Output
from vla_accel_ros.extensions import controller_kind
from vla_accel_ros.nodes.adapters.adapter import CommandTopic, Setup
from vla_accel_ros.nodes.interfaces import interface
from vla_accel_ros.nodes.messages import convert


class BaseAdapter(CommandTopic):
    """A StreamChannel of velocities."""

    def __init__(self, setup: Setup) -> None:
        kind: Any = interface(controller_kind(setup.controller.kind).message, "base")
        super().__init__(setup, kind)
        self._message, self._stamped = kind(), bool(setup.controller.frame)
        if self._stamped:
            self._message.header.frame_id = setup.controller.frame

    @classmethod
    def make(cls, setup: Setup) -> Output:
        """See Adapter."""
        assert setup.twist is not None  # a base has its buffer
        return BaseOutput(setup.controller, setup.twist, cls(setup), setup.clock)

    def publish(self, command: np.ndarray, now_ns: int) -> None:
        """Publish a velocity, float64 [6]."""
        if self._stamped:
            convert.set_stamp(self._message.header.stamp, now_ns)
        convert.set_twist(self._message.twist if self._stamped else self._message, command)
        self._publisher.publish(self._message)
