"""A tiny policy whose chunks identify their robot, and the contract of its robots.

Every robot has its own statistics, in which the gripper goes to its own position: a chunk or command with
another gripper position was made for another robot. The other joints move at random.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import yaml
from load import pi_shapes, write_tokenizer, write_weights

from vla_accel_ros.models.config import PI05, TRAINED_AS, GemmaConfig, VisionConfig
from vla_accel_ros.models.pi.training import USUAL
from vla_accel_ros.nodes.running.environment import demo_contract

MIDDLE = (0.0, 0.0, 1.3, 1.0, 0.0)
REACH_RAD = 0.025
HORIZON = 32
MARK, MARKS_APART, MARK_TOLERANCE = 5, 0.2, 0.05
"""The action that says whose chunk it is; how far two robots' are apart, and how far its own may be off."""
MOST_ROBOTS = 4
CAMERA_HZ, JOINTS_HZ, SIDE = 15, 50, 28


def mark_of(number: int) -> float:
    """Return the constant gripper position of the robot with this number."""
    return MARKS_APART * (number + 1)


def statistics_of(number: int) -> str:
    """Return the name of its normalisation statistics in the checkpoint."""
    return f"robot{number}"


def write_model(folder: Path, robots: int) -> Path:
    """A checkpoint folder with statistics for each robot. Raises ValueError for more than MOST_ROBOTS."""
    if robots > MOST_ROBOTS:
        raise ValueError(f"robots is {robots}: at most {MOST_ROBOTS} can be told apart by their grippers")
    folder.mkdir(parents=True)
    stack = GemmaConfig(width=32, depth=2, mlp=64, heads=4, kv_heads=1, head_dim=8)
    vision = VisionConfig(width=24, depth=2, mlp=48, heads=4, image_size=SIDE, patch=14)
    config = replace(
        PI05,
        vision=vision,
        prefix=stack,
        expert=replace(stack, width=24, mlp=48),
        vocab=300,
        horizon=HORIZON,
        image_names=PI05.image_names[:2],
    )
    write_weights(folder, pi_shapes(config), None)
    write_tokenizer(folder)
    sizes = {**config.to_json(), TRAINED_AS: USUAL[config.kind].to_json()}
    (folder / "config.json").write_text(json.dumps({"vla_accel_ros": sizes}))
    for number in range(robots):
        middle, reach = [*MIDDLE, mark_of(number)], [REACH_RAD] * MARK + [0.002]
        actions = {
            "mean": middle,
            "std": reach,
            "q01": [m - r for m, r in zip(middle, reach)],
            "q99": [m + r for m, r in zip(middle, reach)],
        }
        state = {"mean": [0.0] * 6, "std": [1.0] * 6, "q01": [-2.0] * 6, "q99": [2.0] * 6}
        assets = folder / "assets" / statistics_of(number)
        assets.mkdir(parents=True)
        stats = {"norm_stats": {"state": state, "actions": actions}}
        (assets / "norm_stats.json").write_text(json.dumps(stats))
    return folder


def write_contract(path: Path) -> Path:
    """Write the simulated arm's contract, with absolute actions and slower sensors."""
    fields = yaml.safe_load(demo_contract().read_text())
    for joint in fields["joints"]:
        joint["action"] = "absolute"
    for camera in fields["cameras"].values():
        camera["rate_hz"] = CAMERA_HZ
    fields["joint_states"]["rate_hz"] = JOINTS_HZ
    path.write_text(yaml.safe_dump(fields))
    return path
