"""Which tests one worker runs one after another, and in which order the workers take them.

What starts nodes must keep up with a clock, and two robots at once are too many for two cores: it is one
group, which one worker runs, and the rest runs beside it at a lower priority.
"""

from __future__ import annotations

from pathlib import Path

NODES = "nodes"
STARTING = {
    "bench": "fleet_validation processes stream",
    "fleet": "replica_ray",
    "launch": "ros2_launch",
    "nodes": "added_controller clock_watch closed_loop doctor faults fork_server graph launcher"
    " lifecycle_nodes names params process readme_robot say security_policies service_calls"
    " sim_robot sim_time trace",
    "nodes/adapters": "forward_command servo",
    "nodes/camera": "camera_node",
    "nodes/fleet": "fleet_bag fleet_chaos fleet_up hybrid_placement robot_in_a_fleet scheduler_node"
    " seen_robots",
    "nodes/inference": "chunk_horizon chunk_output fast_node guided_chunks image_topics inputs"
    " instruction lost_ports odd_images openvla_node questions staggered_node transports",
    "nodes/recorder": "player recorder",
    "nodes/trajectory": "chunk_slot far_setpoint force force_sources held_up home joint_move odd_joints"
    " release restart slot_beside_force slow_delivery stop_and_resume trajectory_faults trajectory_node",
    "tools": "demo fleet_demo",
}
"""Folder -> files of tests in it that start nodes."""
FIRST = ("bench/test_corun_agents.py", "kernels/test_stages_on_kernels.py", "fuzz/test_fuzz.py")
"""Of the others, what takes longest, and asks no clock."""


def group(path: Path) -> str:
    """Of a file of tests, by its path below this folder: NODES, or that file alone."""
    folder, name = path.parent.as_posix(), path.stem.removeprefix("test_")
    return NODES if name in STARTING.get(folder, "").split() else path.as_posix()


def order(group: str) -> int:
    """What takes longest comes first, so that all workers end at about the same time.

    The build of the package and benches, which measure for a given time, come last, when no node needs the
    processor any more.
    """
    known = (NODES, *FIRST)
    if group in known:
        return known.index(group)
    return len(known) + (group == "test_package.py" or 2 * group.startswith("bench/"))
