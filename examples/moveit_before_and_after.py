"""MoveIt brings the arm to where the task begins, the policy does the task, MoveIt takes the arm away.

Needs MoveIt's Python (moveit_py) and its parameters, as MoveItPy takes them from a launch file:
python examples/moveit_before_and_after.py "put the cup away" --group arm --before above_table --after home
"""

from __future__ import annotations

import argparse
from typing import Any

from vla_accel_ros import Robot


def move(moveit: Any, group: str, configuration: str) -> None:
    """Plan to a named configuration of the SRDF, and go there. Raises RuntimeError if that fails."""
    arm = moveit.get_planning_component(group)
    arm.set_start_state_to_current_state()
    if not arm.set_goal_state(configuration_name=configuration):
        raise RuntimeError(f"the SRDF has no configuration {configuration} of the group {group}")
    plan = arm.plan()
    if not plan:
        raise RuntimeError(f"MoveIt finds no plan to {configuration}: clear the way")
    if not moveit.execute(plan.trajectory, controllers=[]):
        raise RuntimeError(f"MoveIt did not reach {configuration}: its log says why")


def main(arguments: list[str] | None = None) -> int:
    """Do the task between two moves. Only one side drives: the controllers are released for each move."""
    from moveit.planning import MoveItPy  # type: ignore[import-not-found]

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task")
    parser.add_argument("--namespace", default="")
    parser.add_argument("--group", default="arm")
    parser.add_argument("--before", default="ready")
    parser.add_argument("--after", default="home")
    options = parser.parse_args(arguments)
    moveit = MoveItPy(node_name="moveit_py")
    with Robot(options.namespace) as robot:
        robot.release()
        move(moveit, options.group, options.before)
        robot.reclaim()
        outcome = robot.run(options.task, 60.0)
        print(f"{options.task}: {outcome.reason}: {outcome.message}")
        robot.release()
        move(moveit, options.group, options.after)
    return 0 if outcome.reason != "error" else 1


if __name__ == "__main__":
    raise SystemExit(main())
