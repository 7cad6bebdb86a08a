"""A computer's clock that is set is noticed by every node; one that is merely read late is not."""

from __future__ import annotations

import subprocess
import sys

import pytest
from running import ROOT

from vla_accel_ros.control.following.clock_watch import ClockWatch
from vla_accel_ros.nodes.running.environment import process_environment

S = 1_000_000_000
MS = S // 1000
NODE = """
import sys

import rclpy
from rclpy.executors import SingleThreadedExecutor
from std_msgs.msg import String
from std_srvs.srv import Trigger
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.running.lifecycle import ManagedNode
from vla_accel_ros.nodes.params.tables import NODES

class Told(ManagedNode):
    shift_ns = known_ns = jumps = 0

    def configure(self):
        self.seen = set()
        getattr(self, sys.argv[1])()

    def timer(self):
        self.every(0.01, self.heard)

    def subscription(self):
        self.listen(String, "words", self.heard, qos.LATCHED)
        publisher = self.create_publisher(String, "words", qos.LATCHED)
        self.create_timer(0.01, lambda: publisher.publish(String()))

    def service(self):
        self.serve(Trigger, "~/call", lambda request, response: self.heard() or response)
        self.call_it()

    def coroutine(self):
        async def answer(request, response):
            self.heard()
            return response

        self.serve(Trigger, "~/call", answer)
        self.call_it()

    def call_it(self):
        client = self.create_client(Trigger, "~/call")
        self.create_timer(0.01, lambda: client.call_async(Trigger.Request()))

    def transition(self):
        self.create_timer(0.01, lambda: (self.trigger_deactivate(), self.trigger_activate()))

    def deactivate(self):
        self.heard()

    def heard(self, message=None):
        self.seen.add(self.shift_ns)
        if self.known_ns != self.shift_ns:
            print("not told of", self.shift_ns)

    def now_ns(self):
        return super().now_ns() + self.shift_ns

    def clock_jumped(self):
        self.known_ns, self.jumps = self.shift_ns, self.jumps + 1

rclpy.init()
node, executor = Told("told", NODES["trajectory"]), SingleThreadedExecutor()
executor.add_node(node)
node.trigger_configure()
node.trigger_activate()
for node.shift_ns in (0, -(10**9), -3600 * 10**9):
    while node.shift_ns not in node.seen:
        executor.spin_once(timeout_sec=10.0)
    print(node.jumps)
"""


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


@pytest.mark.parametrize("way", ["timer", "subscription", "service", "coroutine", "transition"])
def test_a_node_starts_afresh_when_the_clock_of_the_computer_is_set_before_anything_sees_the_time(
    ros_domain, way
):
    done = subprocess.run(
        [sys.executable, "-c", NODE, way],
        env=process_environment({"PYTHONPATH": str(ROOT)}), capture_output=True, text=True, timeout=180.0,
        check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["0", "1", "2"], done.stdout + done.stderr
    assert done.stderr.count("starting afresh") == 2
