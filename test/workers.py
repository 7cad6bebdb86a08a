"""Which tests one worker runs one after another, and in which order the workers take them.

What starts nodes must keep up with a clock, and mostly waits: it is two groups, which two workers run, each
in a ROS domain of its own. One drives simulated robots; the other has single nodes, before stand-ins of what
is around them, and commands that look at nodes. The rest runs beside them at a lower priority.
"""

from __future__ import annotations

from pathlib import Path

ROBOTS, NODES = "robots", "nodes"
STARTING = {
    ROBOTS: {
        "bench": "smoke_of_nodes",
        "launch": "robots_move ros2_launch",
        "nodes": "closed_loop faults launcher names openpi_inference readme_robot run_policy_live say"
        " sim_robot sim_robot_options sim_time trace viewers",
        "nodes/fleet": "fleet_bag fleet_chaos hands_in_a_fleet robot_in_a_fleet scheduler_node",
        "nodes/inference": "action_chunks chunk_output guided_chunks inputs instruction"
        " node_on_a_gpu openvla_node questions steering transports",
        "nodes/recorder": "recorder",
        "nodes/trajectory": "causes force stop_and_resume",
        "tools": "demo fleet_demo",
    },
    NODES: {
        "fleet": "replica_ray",
        "nodes": "added_controller base_live brief clock_watch contract_from_robot doctor executor"
        " fork_server graph lifecycle_nodes look_live params process robot_client robot_drivers"
        " security service_calls tf_live",
        "nodes/adapters": "forward_command gripper integrated servo",
        "nodes/camera": "camera_node",
        "nodes/fleet": "fleet_up policy_parameters",
        "nodes/inference": "policy_images",
        "nodes/recorder": "marked_episodes player",
        "nodes/trajectory": "chunk_slot force_sources home joint_move"
        " release restart run_policy slow_delivery take_over trajectory_faults trajectory_node",
    },
}
"""Group -> folder -> files of tests in it that start nodes. Both groups take about as long."""
FIRST = (
    "kernels/test_compiling_quantized.py",
    "kernels/test_compiling.py",
    "kernels/test_stages_on_kernels.py",
    "engine/test_schedules.py",
    "fleet/test_forecast.py",
    "engine/rules/test_overload.py",
)
"""Of the others, what takes longest, and asks no clock."""
SLOW = ("kernels/test_compiling_packed.py", "tools/test_demo_policy.py", "test_mutations.py", "test_wheel.py")
"""Of the others, what is in no short run."""


def group(path: Path) -> str:
    """Of a file of tests, by its path below this folder: one of STARTING, or that file alone."""
    folder, name = path.parent.as_posix(), path.stem.removeprefix("test_")
    for group, folders in STARTING.items():
        if name in folders.get(folder, "").split():
            return group
    return path.as_posix()


def order(group: str) -> int:
    """What takes longest comes first, so that all workers end at about the same time.

    The build of the package and benches, which measure for a given time, come last, when no node needs the
    processor any more.
    """
    groups = (*STARTING, *FIRST)
    if group in groups:
        return groups.index(group)
    return len(groups) + (group == "test_package.py" or 2 * group.startswith("bench/"))


def quick(group: str) -> bool:
    """Whether `make test` runs a group. `make test-slow` runs the others: what starts nodes, compiles for
    GPUs, tries the commands of bench/, trains the demo's policy or breaks lines on purpose."""
    return not (group in STARTING or group in FIRST or group in SLOW or group.startswith("bench/"))
