"""A robot that would touch itself; where its links are, Denavit-Hartenberg tables say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hand_arms import EXPLICIT, UR5E, load, shift, text, turn_x, turn_z, ur5e_urdf, with_shapes

from vla_accel_ros.control.kinematics.collisions import Collisions
from vla_accel_ros.control.kinematics.guard import HandGuard, guarded
from vla_accel_ros.control.limits.joint_limits import JointLimits

NAMES = tuple(f"j{i + 1}" for i in range(6))
FREE = np.array([0.0, -1.2, 1.8, -2.0, -1.57, 0.0])
FOLDED = np.array([0.0, -1.2, 2.95, -2.0, -1.57, 0.0])
"""The elbow folded, so that the hand is in the upper arm or the base."""


def collisions(margin_m: float = 0.0) -> Collisions:
    free = dict(zip(NAMES, FREE.tolist()))
    return Collisions(with_shapes(ur5e_urdf()), Path(), free, margin_m)


def path(to: np.ndarray) -> np.ndarray:
    return FREE + np.linspace(0.0, 1.0, 60)[:, None] * (to - FREE)


def hand_to_base_m(angles: np.ndarray) -> float:
    """From the middle of the hand's ball to the base's box, by the table."""
    pose = np.eye(4)
    for (d, a, alpha), angle in list(zip(UR5E, angles))[:5]:
        pose = pose @ turn_z(angle) @ shift(0.0, d) @ shift(a, 0.0) @ turn_x(alpha)
    away = np.maximum(np.abs(pose[:3, 3] - [0, 0, 0.05]) - [0.15, 0.15, 0.05], 0.0)
    return float(np.linalg.norm(away))


def test_hand_that_reaches_the_base_touches_it_where_the_table_says():
    low = FREE + [0.0, -0.35, 1.49, 0.0, 0.0, 0.0]
    rows = FREE + np.linspace(0.0, 1.0, 400)[:, None] * (low - FREE)
    row, links = collisions().first(rows, NAMES)
    distances = [hand_to_base_m(angles) for angles in rows]
    expected = next((i for i, d in enumerate(distances) if d <= 0.05), len(rows))
    assert 0 < row < 400 and links == "l0 and l6" and abs(row - expected) <= 1


def test_folded_arm_touches_itself_and_an_open_one_does_not():
    row, links = collisions().first(path(FOLDED), NAMES)
    assert 0 < row < 60 and "l6" in links
    assert collisions().first(path(FREE + 0.1), NAMES) == (60, "")


def test_margin_makes_it_earlier():
    assert collisions(0.05).first(path(FOLDED), NAMES)[0] < collisions().first(path(FOLDED), NAMES)[0]


def test_what_touches_already_may_go_on():
    rows = path(FOLDED)
    row, _ = collisions().first(rows, NAMES)
    assert collisions().first(rows[row : row + 2], NAMES)[1] == ""


def test_plan_into_itself_is_refused_with_its_links():
    limits = JointLimits(np.full(6, -7.0), np.full(6, 7.0), np.full(6, 3.0), np.full(6, 20.0))
    guard = HandGuard((), limits, collisions())
    for to, refused in ((FOLDED, True), (FREE + 0.1, False)):
        rows = path(to)
        times = np.arange(60) * 50_000_000
        knots = times, rows, np.zeros_like(rows)
        if not refused:
            guard.enforce(NAMES, *knots, limits)
            continue
        with pytest.raises(ValueError, match="l6"):
            guard.enforce(NAMES, *knots, limits)


@pytest.mark.parametrize(
    ("urdf", "facts"),
    [
        (ur5e_urdf(), ("collisions", "less than two")),
        (
            with_shapes(ur5e_urdf()).replace('<sphere radius="0.05"/>', '<mesh filename="no.stl"/>'),
            ("no.stl",),
        ),
    ],
)
def test_shapes_that_cannot_be_read_refuse_the_contract(tmp_path, urdf, facts):
    written = text(EXPLICIT).replace("hands:\n", "collisions: {margin_m: 0.01}\nhands:\n")
    with pytest.raises(ValueError) as refusal:
        load(tmp_path, written, urdf)
    assert all(fact in str(refusal.value) for fact in facts)


def test_contract_has_collisions_with_a_margin(tmp_path):
    written = text(EXPLICIT).replace("hands:\n", "collisions: {margin_m: 0.01}\nhands:\n")
    assert load(tmp_path, written, with_shapes(ur5e_urdf())).collisions is not None
    assert load(tmp_path, text(EXPLICIT)).collisions is None


def test_only_who_moves_all_joints_that_may_touch_each_other_looks_at_them(tmp_path):
    written = text(EXPLICIT).replace("hands:\n", "collisions: {margin_m: 0.01}\nhands:\n")
    contract = load(tmp_path, written, with_shapes(ur5e_urdf()))
    rows = np.hstack([path(FOLDED), np.full((60, 1), 0.02)])
    with pytest.raises(ValueError, match="l6"):
        guarded(contract, contract.joint_names).guard.check_positions(contract.joint_names, rows)
    assert guarded(contract, NAMES[1:]).guard is None
