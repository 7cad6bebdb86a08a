"""A goal of run_policy on real nodes: the simulated arm, a policy of random weights, and its death."""

from __future__ import annotations

import threading

from stack import Stack, assert_ends_at_rest, wait_for_motion

from vla_accel_ros import Robot
from vla_accel_ros.nodes.clients.robot import Outcome


def test_killed_inference_ends_the_goal_at_rest_and_its_successor_has_no_words(start, tmp_path, operator):
    stack = Stack(start, tmp_path, run_stall_s=3.0)
    operator.wait(lambda: operator.measured, 180.0, "joint state")
    task = operator.reset("reach", 1)
    outcomes: list[Outcome] = []

    def run() -> None:
        with Robot() as robot:
            outcomes.append(robot.run(task))

    stack.inference.wait_for_log("ready")
    thread = threading.Thread(target=run)
    thread.start()
    wait_for_motion(operator)
    stack.inference.kill()
    operator.wait(lambda: outcomes, 90.0, "outcome")
    thread.join()
    assert outcomes[0].reason == "error" and "inference" in outcomes[0].message
    assert_ends_at_rest(operator)
    stack.inference.start()
    waits = "no instruction"
    operator.wait(lambda: waits in operator.diagnostics["inference: inference"].message, 180.0, waits)
    assert operator.motions[-1].state == operator.motions[-1].HOLDING
