"""Which tests one worker runs one after another, and in which order the workers take them.

What starts nodes must keep up with a clock. A whole robot takes a core, and of other nodes one at a time is
little beside it: each of the two has a worker of its own, and the rest runs beside them at a lower priority.
The doctor looks for lost ports on all of the machine, so it is in one group with those who lose some.
"""

from __future__ import annotations

from pathlib import Path

ROBOTS = {
    "nodes": "closed_loop faults launcher names readme_robot say sim_time trace",
    "nodes/fleet": "robot_in_a_fleet scheduler_node",
    "nodes/inference": "chunk_horizon chunk_output fast_node guided_chunks inputs openvla_node"
    " questions staggered_node",
    "nodes/recorder": "recorder",
    "nodes/trajectory": "slow_delivery stop_and_resume trajectory_node",
    "tools": "demo",
}
NODES = {
    "bench": "processes stream",
    "launch": "ros2_launch",
    "nodes": "added_controller clock_watch doctor fork_server graph lifecycle_nodes params process"
    " security_policies service_calls sim_robot",
    "nodes/adapters": "forward_command servo",
    "nodes/camera": "camera_node",
    "nodes/inference": "image_topics instruction lost_ports odd_images transports",
    "nodes/recorder": "player",
    "nodes/trajectory": "chunk_slot force force_sources home joint_move odd_joints release restart"
    " slot_beside_force trajectory_faults",
}
STARTING = {"robots": ROBOTS, "nodes": NODES}
FIRST = ("bench/test_corun_agents.py", "kernels/test_stages_on_kernels.py", "fuzz/test_fuzz.py")
"""Of the others, what takes longest, and asks no clock."""


def group(path: Path) -> str:
    """Of a file of tests, by its path below this folder: robots, nodes, or that file alone."""
    folder, name = path.parent.as_posix(), path.stem.removeprefix("test_")
    for group, files in STARTING.items():
        if name in files.get(folder, "").split():
            return group
    return path.as_posix()


def order(group: str) -> int:
    """What takes longest comes first, so that all workers end at about the same time.

    The build of the package and benches, which measure for a given time, come last, when no node needs the
    processor any more.
    """
    known = (*STARTING, *FIRST)
    if group in known:
        return known.index(group)
    return len(known) + (group == "test_package.py" or 2 * group.startswith("bench/"))
