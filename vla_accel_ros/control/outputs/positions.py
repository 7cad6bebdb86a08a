"""forward_command_controller: positions at a fixed rate; the controller executes each at once. What is
commanded is decided in control/command_stream.py."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from vla_accel_ros.control.command_stream import CommandStream
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.outputs.output import Clock, Controller, Output, StreamChannel, by_name, steady_ns
from vla_accel_ros.control.trajectory import Trajectory


class PositionOutput(Output):
    """limits: of the controller's joints, in its order."""

    def __init__(
        self, controller: Controller, limits: JointLimits, channel: StreamChannel, clock: Clock
    ) -> None:
        super().__init__(controller)
        self._channel, self._clock = channel, clock
        self._stream = CommandStream(controller.joints, limits, 1.0 / controller.rate_hz)
        self._position: np.ndarray | None = None

    def send(self, trajectory: Trajectory, decided_ns: int) -> None:
        self._stream.follow(trajectory, self._clock.now_ns(), self._position)

    def measured(self, positions: Mapping[str, float], stamps_ns: Mapping[str, int], believed: bool) -> None:
        self._position = np.array([positions[name] for name in self.controller.joints])

    def commanded(self, t_ns: int) -> Mapping[str, float]:
        return by_name(self.controller.joints, self._stream.commanded(t_ns))

    def begin(self) -> None:
        self._stream.forget()

    def stop(self, braking: Trajectory | None, now_ns: int) -> None:
        self._stream.stop(now_ns, steady_ns(self._clock, now_ns))

    def tick(self, now_ns: int) -> None:
        state = self._stream.tick(now_ns, steady_ns(self._clock, now_ns))
        if state is not None:
            self._channel.publish(state.position, now_ns)

    def at_rest(self, now_ns: int) -> bool:
        return self._stream.at_rest(now_ns)

    def poll_refusal(self) -> str:
        return self._stream.poll_refusal()

    def close(self) -> None:
        self._channel.close()

    def values(self) -> dict[str, object]:
        return {name: self._stream.counts[name] for name in ("late", "joined")}
