"""The nodes with a fault each, as programs: `python faulty.py --ros-args ... -p autostart:=true`.

The instruction says which fault of inference happens and when; ~/resume is the trajectory node's.
"""

from __future__ import annotations

import os
import threading

from std_msgs.msg import String

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.orders.order import Order
from vla_accel_ros.nodes.inference.node import InferenceNode
from vla_accel_ros.nodes.running.process import run
from vla_accel_ros.nodes.trajectory.node import TrajectoryNode
from vla_accel_ros.sensing.inputs import RobotInputs
from vla_accel_ros.types import Observation

PANIC, EXIT, THREAD, STICKY = "panic in a loop", "exit in a callback", "panic in a thread", "sticky error"
ASSERTION = "CUDA error: device-side assert triggered"


class PanicException(BaseException):
    """As a library in Rust raises one: no Exception."""


class FaultyInference(InferenceNode):
    """Its GPU is lost when an error says so, as torch asks a real one."""

    def observe_robot(self, contract: Contract, inputs: RobotInputs, answers: bool = False) -> None:
        observe, ingest = inputs.observe, inputs.ingest

        def faulty(now_ns: int) -> Observation | None:
            if ingest.instruction == PANIC:
                raise PanicException("called `Option::unwrap()` on a `None` value")
            if ingest.instruction == STICKY:
                raise RuntimeError(ASSERTION)
            return observe(now_ns)

        inputs.observe = faulty  # type: ignore[method-assign]
        super().observe_robot(contract, inputs, answers)

    def hopeless(self, error: Exception) -> str:
        return "the GPU is lost" if str(error) == ASSERTION else super().hopeless(error)

    def _on_instruction(self, message: String) -> None:
        super()._on_instruction(message)
        if message.data == EXIT:
            raise SystemExit(0)
        if message.data == THREAD:
            threading.Thread(target=_panic, name="of a library").start()


class FaultyTrajectory(TrajectoryNode):
    def configure(self) -> None:
        super().configure()
        assert self._motion is not None
        self._motion.operator.order = _panic_in_a_callback  # type: ignore[method-assign]


def _panic_in_a_callback(name: str) -> Order:
    raise PanicException("a panic in a callback")


def _panic() -> None:
    raise PanicException("a panic in a thread")


if __name__ == "__main__":
    raise SystemExit(run(FaultyTrajectory if os.environ.get("FAULTY") == "trajectory" else FaultyInference))
