"""Figures of the fleet demo: for its JSON, the line after each episode, and the closing tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from vla_accel_ros.tools.demo.play import Played
from vla_accel_ros.tools.fleet_demo.faults import Fault
from vla_accel_ros.tools.fleet_demo.robot import Robot


def line(robot: str, played: Played) -> str:
    """Return the line of one episode."""
    how = "success" if played.success else "missed "
    tail = f"   (interrupted: {', '.join(played.interrupted_by)})" if played.interrupted_by else ""
    return f"{robot}   {played.plan.task.instruction:<38} {how} {played.time_s:5.1f} s{tail}"


def figures(
    robots: Sequence[Robot],
    episodes: int,
    faults: Sequence[Fault],
    stalled_s: Mapping[str, float],
    cpu_share: Mapping[str, float],
) -> dict[str, Any]:
    """Return all figures. episodes: tasks that each robot had; stalled_s: by robot; cpu_share: by node."""
    return {
        "robots": {
            robot.name: _of_robot(robot, episodes, stalled_s.get(robot.name, 0.0)) for robot in robots
        },
        "faults": [
            {
                "killed": list(fault.killed),
                "at_s": round(fault.at_s, 1),
                "moving_again_s": {
                    name: None if again_s is None else round(again_s, 2)
                    for name, again_s in fault.moving_again_s.items()
                },
            }
            for fault in faults
        ],
        "cpu_share": {name: round(share, 3) for name, share in cpu_share.items()},
    }


def _of_robot(robot: Robot, episodes: int, stalled_s: float) -> dict[str, Any]:
    return {
        "succeeded": all(map(robot.done, range(episodes))),
        "tasks_done": sum(map(robot.done, range(episodes))),
        "tasks": episodes,
        "successes": sum(played.success for played in robot.played),
        "scenes": len(robot.played),
        "stalled_s": round(stalled_s, 2),
        "chunks": sum(played.chunks for played in robot.played),
        "records": [
            {
                "turn": played.plan.index,
                "seed": played.plan.seed,
                "instruction": played.plan.task.instruction,
                "success": played.success,
                "time_s": round(played.time_s, 2),
                "interrupted_by": list(played.interrupted_by),
            }
            for played in robot.played
        ],
    }


def tables(found: dict[str, Any]) -> Group:
    """Return the closing tables."""
    robots = Table(title="robots", title_justify="left")
    for name in ("robot", "tasks done", "scenes", "stalled s"):
        robots.add_column(name, justify="left" if name == "robot" else "right")
    for name, robot in found["robots"].items():
        done = f"{robot['tasks_done']} of {robot['tasks']}"
        scenes = f"{robot['successes']} of {robot['scenes']}"
        robots.add_row(name, done, scenes, f"{robot['stalled_s']:.1f}")
    time = found["simulated_time"]
    factor = time["factor"]
    text = Text(
        f"{time['seconds']:.0f} simulated s in {time['real_seconds']:.0f} real s: simulated time went at "
        f"{factor['mean']:.2f} of real time (from {factor['least']:.2f} to {factor['most']:.2f}); times of "
        "tasks and stalls are simulated, those after kills real"
    )
    if not found["faults"]:
        return Group(robots, text)
    faults = Table(title="killed", title_justify="left")
    for name in ("what", "at s", "moving again after real s"):
        faults.add_column(name)
    for fault in found["faults"]:
        times = ", ".join(
            f"{name} {'not yet' if again_s is None else f'{again_s:.1f}'}"
            for name, again_s in fault["moving_again_s"].items()
        )
        faults.add_row("\n".join(fault["killed"]), f"{fault['at_s']:.0f}", times)
    return Group(robots, faults, text)
