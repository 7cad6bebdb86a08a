"""A computer's clock that is set is noticed by every node; one that is merely read late is not."""

from __future__ import annotations

import pytest
import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.signals import SignalHandlerOptions

from vla_accel_ros.nodes.clock_watch import ClockWatch
from vla_accel_ros.nodes.lifecycle import ManagedNode
from vla_accel_ros.nodes.params.tables import NODES

S = 1_000_000_000
MS = S // 1000


class Clocks:
    """One that is set, and one that is not; every reading of the steady one takes `slow_ns`."""

    def __init__(self) -> None:
        self.clock, self.steady, self.slow_ns = 1000 * S, 5 * S, 0

    def pass_ns(self, by: int) -> None:
        self.clock, self.steady = self.clock + by, self.steady + by

    def read_clock(self) -> int:
        return self.clock

    def read_steady(self) -> int:
        self.pass_ns(self.slow_ns)
        return self.steady


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.mark.parametrize("by_s", [-0.03, -0.25, -3.0, -3600.0, 1.5, 3600.0])
def test_a_clock_that_was_set_is_told_once(clocks, by_s):
    watch = ClockWatch(clocks.read_clock, clocks.read_steady)
    clocks.pass_ns(100 * MS)
    assert watch.jump_ns() == 0
    clocks.pass_ns(100 * MS)
    clocks.clock += round(by_s * S)
    assert watch.jump_ns() == round(by_s * S)
    clocks.pass_ns(100 * MS)
    assert watch.jump_ns() == 0


def test_a_thread_that_is_kept_waiting_between_two_readings_tells_nothing(clocks):
    watch = ClockWatch(clocks.read_clock, clocks.read_steady)
    for slow_ms in (0, 900, 0, 5000, 5000, 0):
        clocks.slow_ns = slow_ms * MS
        clocks.pass_ns(100 * MS)
        assert watch.jump_ns() == 0


class Told(ManagedNode):
    """A node with a clock of its own."""

    def __init__(self) -> None:
        self.shift_ns, self.jumps = 0, 0
        super().__init__("told", NODES["trajectory"])

    def now_ns(self) -> int:
        return super().now_ns() + self.shift_ns

    def clock_jumped(self) -> None:
        self.jumps += 1


def test_a_node_starts_afresh_when_the_clock_of_the_computer_is_set_back(ros_domain):
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    try:
        node, executor = Told(), SingleThreadedExecutor()
        executor.add_node(node)
        for shift_ns, jumps in ((0, 0), (-S, 1), (-S, 1), (-3600 * S, 2)):
            node.shift_ns = shift_ns
            for _ in range(5):
                executor.spin_once(timeout_sec=10.0)
            assert node.jumps == jumps
        node.destroy_node()
    finally:
        rclpy.shutdown()
