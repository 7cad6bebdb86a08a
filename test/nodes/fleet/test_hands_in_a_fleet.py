"""A hand by tf whose chunks a fleet makes, on real topics: what the policy sees, what stops the robot."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from builders import make_checkpoint, make_config, make_stats
from geometry_msgs.msg import TransformStamped
from hand_arms import load, ur5e
from stack import commanded_acceleration, rests
from stand_ins import Arm
from tf_messages import transform
from tf_tree import HIGHER_M, START, Tree, contract_text, higher, right

from vla_accel_msgs.msg import Motion, Observed
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.operator import Operator

S = 1_000_000_000
TURN = count()


def late(pose: np.ndarray, now_ns: int) -> list[TransformStamped]:
    return right(pose, now_ns - 2 * S)


def elsewhere(pose: np.ndarray, now_ns: int) -> list[TransformStamped]:
    return [transform("nowhere", "tool0", pose, now_ns)]


def in_turn(pose: np.ndarray, now_ns: int) -> list[TransformStamped]:
    return right(pose if next(TURN) % 2 else higher(pose), now_ns)


def seldom(pose: np.ndarray, now_ns: int) -> list[TransformStamped]:
    """A second publisher at 1 Hz."""
    turn = next(TURN)
    return right(higher(pose) if turn % 50 == 0 else pose, now_ns)


def broken(pose: np.ndarray, now_ns: int) -> list[TransformStamped]:
    return right(higher(pose, np.nan), now_ns)


FAULTS: list[tuple[Callable[[np.ndarray, int], list[TransformStamped]], str]] = [
    (lambda pose, now_ns: [], "tool0 is"),
    (late, "tool0 is 2."),
    (elsewhere, "no transform from world to tool0"),
    (in_turn, "tool0 in l0 comes from two publishers"),
    (seldom, "tool0 in l0 comes from two publishers"),
    (broken, "tool0 in l0 is not finite"),
]


@pytest.fixture
def contract(tmp_path: Path) -> Contract:
    return load(tmp_path, contract_text())


@pytest.fixture
def arm(operator: Operator) -> Iterator[Arm]:
    with Arm(operator, START) as arm:
        yield arm


def make_model(folder: Path) -> Path:
    """A random policy whose actions are about the hand's first pose, slow enough for a busy machine."""
    model = make_checkpoint(folder, make_config(image_names=("base_0_rgb",), horizon=32))
    pose = ur5e(START[:6])
    turn = pose[:3, :3]
    pitch = -np.arcsin(turn[2, 0])
    rpy = [np.arctan2(turn[2, 1], turn[2, 2]), pitch, np.arctan2(turn[1, 0], turn[0, 0])]
    middle, way = np.array([*pose[:3, 3], *rpy, START[6]]), np.array([0.01] * 3 + [0.03] * 3 + [0.001])
    actions = {"mean": middle, "std": way, "q01": middle - way, "q99": middle + way}
    stats = {"state": make_stats(0, joints=7), "actions": {k: v.tolist() for k, v in actions.items()}}
    (model / "assets" / "arm" / "norm_stats.json").write_text(json.dumps({"norm_stats": stats}))
    return model


def test_the_fleets_policy_sees_tf_and_the_robot_stops_smoothly_for_each_fault_of_it_and_names_it(
    start, operator, arm, cameras, contract, tmp_path
) -> None:
    tree, path = Tree(operator, arm), str(tmp_path / "robot.yaml")
    seen: list[Observed] = []
    operator.node.create_subscription(Observed, "observed", seen.append, qos.REPORT)
    start("fleet", autostart=True, contract=path, model=str(make_model(tmp_path / "model")), steps=2)
    start("trajectory", autostart=True, contract=path, lead_s=0.05)
    start("fleet_inference", autostart=True, contract=path, engine="fleet")

    def runs() -> bool:
        return bool(operator.motions) and operator.motions[-1].state == Motion.RUNNING

    def tip() -> np.ndarray:
        """Where the newest chunk's policy saw it."""
        return np.array(seen[-1].state[:3])

    operator.instruct("stay")
    operator.wait(lambda: seen, 120.0, "observation of a chunk")
    pose = ur5e(START[:6])
    np.testing.assert_allclose(tip(), pose[:3, 3] + [0, 0, HIGHER_M], atol=2e-3)
    operator.wait(runs, 60.0, "running")
    operator.wait(lambda: np.ptp([j.positions for j in operator.joints], 0).max() > 0.01, 60.0, "motion")
    for fault, sentence in FAULTS:
        tree.flange = fault

        def named(sentence: str = sentence) -> bool:
            reasons = operator.motions[-1].reasons
            return any("tf/arm" in reason and sentence in reason for reason in reasons)

        operator.wait(named, 60.0, f"{sentence!r} as the reason")
        operator.wait(lambda: rests(operator), 30.0, "rest")
        tree.flange = right
        operator.wait(runs, 60.0, f"running again after {sentence!r}")
    tree.flange = lambda pose, now_ns: right(higher(pose, -1.0), now_ns)
    operator.wait(lambda: tip()[2] < 0.5, 60.0, "chunk from where tf has jumped to")
    operator.wait(runs, 60.0, "running after a jump")
    assert (commanded_acceleration(operator, 0) <= 1.001).all()
    assert not arm.rejected
