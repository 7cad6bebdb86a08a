"""A simulated robot without a model, beside the scheduler of a fleet: it reaches what it is told to."""

from __future__ import annotations

from collections.abc import Callable

from running import NodeProcess

from vla_accel_ros.nodes import convert
from vla_accel_ros.nodes.clients.operator import Operator


def test_it_reaches_what_it_is_told_to_and_goes_on_with_another_scheduler(
    start: Callable[..., NodeProcess], operator: Operator
) -> None:
    start("sim_robot")
    start("trajectory", autostart=True, lead_s=0.05)
    fleet = start("fleet", autostart=True, denoise_steps=4)
    start("fleet_inference", autostart=True, engine="fleet")
    operator.wait(lambda: operator.measured, 90.0, "joint state")

    def reach_something() -> None:
        """In one of a few scenes: success rates are measured elsewhere."""
        for seed in range(1000, 1005):
            instruction = operator.reset("reach", seed)
            since_ns = operator.now_ns()
            operator.instruct(instruction)

            def success(instruction: str = instruction, since_ns: int = since_ns) -> bool:
                truth = operator.truth
                if truth is None or convert.stamp_ns(truth.header.stamp) <= since_ns:
                    return False
                return truth.success and truth.instruction == instruction

            try:
                operator.wait(success, 60.0, "success")
            except TimeoutError:
                continue
            return
        raise AssertionError("it reached nothing in five scenes")

    reach_something()
    fleet.kill()
    fleet.start()
    reach_something()
