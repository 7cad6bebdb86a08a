"""A node that can no longer do its work ends, with a status and a reason, and the arm has stopped before."""

from __future__ import annotations

from pathlib import Path

import faulty
import pytest
from stack import Stack, assert_ends_at_rest, commanded_acceleration, wait_for_motion, wait_for_rest
from std_srvs.srv import Trigger

PROGRAM = Path(faulty.__file__)
S = 1_000_000_000


@pytest.fixture
def ros_domain(shared_domain: int) -> int:
    """Of the robot that these tests share."""
    return shared_domain


@pytest.fixture(scope="module")
def shared_stack(shared_start, tmp_path_factory) -> Stack:
    inference = {"program": PROGRAM, "after_restart": "forget"}
    return Stack(shared_start, tmp_path_factory.mktemp("model"), inference=inference)


@pytest.fixture
def stack(shared_stack: Stack, operator) -> Stack:
    """It moves, whatever the test before did to it."""
    shared_stack.mend(operator)
    return shared_stack


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (faulty.PANIC, "the thread 'engine' died: this process ends"),
        (faulty.THREAD, "the thread 'of a library' died: this process ends"),
        (faulty.EXIT, "a callback failed: this process ends"),
        (faulty.STICKY, "vision loop: the GPU is lost: this process ends"),
    ],
)
def test_inference_ends_with_a_reason_and_the_next_one_goes_on(stack, operator, fault, reason):
    begun_ns = operator.now_ns()
    operator.instruct(fault)
    assert stack.inference.process.wait(90.0) == 1
    assert reason in stack.inference.log
    assert (faulty.ASSERTION if fault == faulty.STICKY else "Exit" if fault == faulty.EXIT else "Panic") in (
        stack.inference.log
    )
    wait_for_rest(operator)
    assert commanded_acceleration(operator, begun_ns).max() <= 1.02
    operator.instruct("reach the red block")
    stack.inference.start()
    wait_for_motion(operator)


def test_a_panic_in_a_callback_of_trajectory_stops_the_arm_first(stack, operator, monkeypatch):
    assert stack.trajectory.end() == 0
    monkeypatch.setenv("FAULTY", "trajectory")
    monkeypatch.setattr(stack.trajectory, "program", PROGRAM)
    stack.trajectory.start()
    wait_for_motion(operator)
    begun_ns = operator.now_ns()
    client = operator.node.create_client(Trigger, "trajectory/resume")
    assert client.wait_for_service(30.0)
    client.call_async(Trigger.Request())
    assert stack.trajectory.process.wait(90.0) == 1
    assert "PanicException: a panic in a callback" in stack.trajectory.log
    assert "a callback failed: this process ends" in stack.trajectory.log
    wait_for_rest(operator)
    assert_ends_at_rest(operator)
    assert commanded_acceleration(operator, begun_ns).max() <= 1.02
