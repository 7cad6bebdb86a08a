"""Poses by tf: composed as homogeneous matrices are, as old as the oldest transform, refused by name."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from vla_accel_ros.control.kinematics.hand import Tf
from vla_accel_ros.sensing.transforms import HandPoses, Transforms

S = 1_000_000_000
MS = S // 1000
NOW = 50 * S
HAND = Tf("base", "tip", 0.1)
STILL = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0)


def matrix(numbers: Sequence[float] | np.ndarray) -> np.ndarray:
    """float64 [4, 4] of x to qw, by the textbook's formula of a unit quaternion."""
    x, y, z, w = np.asarray(numbers[3:], float) / np.linalg.norm(numbers[3:])
    homogeneous = np.eye(4)
    homogeneous[:3, :3] = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    homogeneous[:3, 3] = numbers[:3]
    return homogeneous


def numbers_of(rng: np.random.Generator) -> tuple[float, ...]:
    turn = rng.normal(size=4)
    unit = turn / np.linalg.norm(turn) * rng.uniform(0.996, 1.004)  # as rounded to float32, and worse
    return (*rng.uniform(-2.0, 2.0, 3), *unit)


def arm(x: float = 0.0, stamp_ns: int = NOW) -> list[tuple]:
    """base -> wrist, which moves, -> tip."""
    return [("wrist", "base", (x, *STILL[1:]), stamp_ns), ("tip", "wrist", STILL, stamp_ns)]


def make_poses(hand: Tf = HAND) -> HandPoses:
    return HandPoses({"tf/arm": hand}, 64, 1.0)


def problem(transforms: Transforms, hand: Tf = HAND) -> str:
    with pytest.raises(ValueError) as refusal:
        transforms.pose(hand, NOW)
    return str(refusal.value)


def test_pose_is_the_product_of_homogeneous_matrices_along_random_trees():
    rng = np.random.default_rng(4)
    for _ in range(200):
        count = int(rng.integers(2, 12))
        parents = [int(rng.integers(0, i)) for i in range(1, count)]
        transforms, in_root, stamps = Transforms(), [np.eye(4)], [0]
        for child, parent in enumerate(parents, 1):
            numbers, stamp_ns = numbers_of(rng), NOW - int(rng.integers(1, 1000))
            transforms.add((f"f{child}", f"f{parent}", numbers, stamp_ns), False, NOW)
            in_root.append(in_root[parent] @ matrix(numbers))
            stamps.append(stamp_ns)
        base, tip = rng.choice(count, 2, replace=False)
        pose, stamp_ns, frame = transforms.pose(Tf(f"f{base}", f"f{tip}", 0.1), NOW)
        np.testing.assert_allclose(matrix(pose), np.linalg.inv(in_root[base]) @ in_root[tip], atol=1e-9)
        ancestors: list[set[int]] = []
        for end in (base, tip):
            ancestors.append(set())
            while end:
                ancestors[-1].add(int(end))
                end = parents[end - 1]
        way = ancestors[0] ^ ancestors[1]
        assert stamp_ns == min(stamps[i] for i in way) and stamps[int(frame[1:])] == stamp_ns


def test_static_transform_has_no_age_and_stays_when_all_stamps_are_forgotten():
    transforms = Transforms()
    transforms.add(("tip", "wrist", STILL, 0), True, NOW)
    transforms.add(("wrist", "base", STILL, NOW), False, NOW)
    assert transforms.pose(HAND, NOW)[1:] == (NOW, "wrist")
    transforms.clear()
    assert "base" in problem(transforms)
    transforms.add(("wrist", "base", STILL, NOW + 1), False, NOW)
    assert transforms.pose(HAND, NOW)[1] == NOW + 1


def test_newest_transform_counts_in_whatever_order_they_come():
    transforms = Transforms()
    for x, stamp_ns in ((1.0, NOW - 20 * MS), (3.0, NOW), (2.0, NOW - 10 * MS)):
        for transform in arm(x, stamp_ns):
            transforms.add(transform, False, NOW)
    pose, stamp_ns, _ = transforms.pose(HAND, NOW)
    assert (pose[0], stamp_ns) == (3.0, NOW)


def test_clock_that_was_set_back_begins_anew():
    transforms = Transforms()
    for stamp_ns in (NOW, NOW - 10 * S):
        for transform in arm(stamp_ns / S, stamp_ns):
            transforms.add(transform, False, NOW)
    assert transforms.pose(HAND, NOW)[:2][1] == NOW - 10 * S


@pytest.mark.parametrize(
    ("wrong", "facts"),
    [
        (("wrist", "base", (np.nan, *STILL[1:]), NOW), ("wrist", "finite")),
        (("wrist", "base", (0, 0, 0, 0, 0, np.inf, 1.0), NOW), ("wrist", "finite")),
        (("wrist", "base", (0, 0, 0, 0, 0, 0, 0.0), NOW), ("wrist", "quaternion")),
        (("wrist", "base", (0, 0, 0, 0, 0, 0.2, 1.0), NOW), ("wrist", "quaternion")),
        (("wrist", "tip", STILL, NOW), ("wrist", "loop")),
        (("wrist", "world", STILL, NOW), ("world", "base", "tip")),
        (("wrist", "base", STILL, NOW + S), ("wrist", "future")),
    ],
)
def test_transform_that_cannot_be_used_is_named(wrong, facts):
    transforms = Transforms()
    for transform in (*arm(stamp_ns=NOW - 1)[1:], wrong):
        transforms.add(transform, False, NOW)
    sentence = problem(transforms)
    assert all(fact in sentence for fact in facts), sentence


def test_frame_that_nothing_moves_is_named():
    transforms = Transforms()
    for transform in arm():
        transforms.add(transform, True, NOW)
    assert "static" in problem(transforms) and "tip" in problem(transforms)


def alternate(transforms: Transforms, second: Sequence[tuple], count: int) -> None:
    """The arm at rest by one publisher, and in turn what another says of it."""
    for i in range(count):
        stamp_ns = NOW - (count - i) * 10 * MS
        for transform in arm(0.0, stamp_ns):
            transforms.add(transform, False, stamp_ns)
        for frame, parent, numbers, delay_ns in second:
            transforms.add((frame, parent, numbers, stamp_ns + delay_ns), False, stamp_ns)


@pytest.mark.parametrize(
    "second",
    [
        [("wrist", "base", (0.5, *STILL[1:]), 5 * MS)],
        [("wrist", "base", (0.0, 0.0, 0.0, 0.0, 0.0, 0.6, 0.8), 5 * MS)],
        [("wrist", "base", (0.5, *STILL[1:]), 0)],
        [("wrist", "world", STILL, 5 * MS)],
        [("wrist", "base", STILL, -2 * S)],
    ],
    ids=["place", "turn", "same stamp", "parent", "clock"],
)
def test_second_publisher_in_turn_is_named_until_a_second_after_it_is_gone(second):
    transforms = Transforms()
    alternate(transforms, second, 20)
    assert "wrist" in problem(transforms) and "two publishers" in problem(transforms)
    for transform in arm(0.0, NOW + 2 * S):
        transforms.add(transform, False, NOW + 2 * S)
    assert transforms.pose(HAND, NOW + 2 * S)[1] == NOW + 2 * S


def test_arm_that_moves_fast_to_and_fro_is_not_two_publishers():
    """0.2 m at 3 Hz, told 20 times a second: it turns round six times in a second."""
    transforms = Transforms()
    for i in range(300):
        stamp_ns = NOW + i * 50 * MS
        for transform in arm(0.2 * np.sin(2 * np.pi * 3.0 * i / 20), stamp_ns):
            transforms.add(transform, False, stamp_ns)
        transforms.pose(HAND, stamp_ns)


@pytest.mark.parametrize("period_s", [0.5, 1.0, 3.0])
@pytest.mark.parametrize(
    "second",
    [("base", (0.6, *STILL[1:])), ("base", (0.0, 0.0, 0.0, 0.0, 0.0, 0.6, 0.8)), ("world", STILL)],
    ids=["place", "turn", "parent"],
)
def test_second_publisher_that_sends_seldom_beside_a_moving_arm_is_named_until_it_is_gone(second, period_s):
    """The arm goes 0.3 m to and fro in two seconds, and is told 50 times a second."""
    transforms, named = Transforms(), []
    for i in range(round(30 * period_s * 50)):
        stamp_ns, seconds = NOW + i * 20 * MS, i / 50
        for transform in arm(0.3 * np.sin(np.pi * seconds), stamp_ns):
            transforms.add(transform, False, stamp_ns)
        if seconds < 15 * period_s and i % round(period_s * 50) == 0:
            transforms.add(("wrist", *second, stamp_ns + 7 * MS), False, stamp_ns + 7 * MS)
            continue
        try:
            transforms.pose(HAND, stamp_ns)
        except ValueError as problem:
            assert "wrist" in str(problem) and "two publishers" in str(problem)
            named.append(seconds / period_s)
    assert 1.0 < named[0] < 5.0 and 14.0 < named[-1] < 19.0
    assert len(named) > 0.9 * (named[-1] - named[0]) * period_s * 50


def test_arm_that_moves_as_fast_as_arms_do_is_not_two_publishers_however_often_it_is_told():
    """To and fro at 1.5 Hz at most, with 30 m/s2 and 60 rad/s2."""
    rng = np.random.default_rng(0)
    for _ in range(40):
        transforms, told_hz = Transforms(), rng.uniform(8.0, 80.0)
        pace = 2 * np.pi * rng.uniform(0.2, 1.5)
        reach, angle = 30.0 / pace**2, min(60.0 / pace**2, 3.0)
        for i in range(round(15 * told_hz)):
            stamp_ns, sine = NOW + round(i / told_hz * S), np.sin(pace * i / told_hz)
            turn = (0.0, 0.0, np.sin(angle * sine / 2), np.cos(angle * sine / 2))
            transforms.add(("wrist", "base", (reach * sine, 0.0, 0.0, *turn), stamp_ns), False, stamp_ns)
            if i == 0:
                transforms.add(("tip", "wrist", STILL, 0), True, stamp_ns)
            transforms.pose(HAND, stamp_ns)


def test_noise_of_a_hand_that_a_camera_looks_for_is_not_two_publishers():
    """3 mm and 0.6 degrees about each axis, told 50 times a second for a minute."""
    rng, transforms = np.random.default_rng(0), Transforms()
    transforms.add(("tip", "wrist", STILL, 0), True, NOW)
    for i in range(3000):
        stamp_ns = NOW + i * 20 * MS
        numbers = (*rng.normal(0.0, 0.003, 3), *rng.normal(0.0, 0.005, 3), 1.0)
        transforms.add(("wrist", "base", numbers, stamp_ns), False, stamp_ns)
        transforms.pose(HAND, stamp_ns)


def test_number_of_frames_is_bounded():
    transforms = Transforms()
    for i in range(10_000):
        transforms.add((f"f{i + 1}", f"f{i}", STILL, NOW), False, NOW)
    transforms.pose(Tf("f0", "f4000", 0.1), NOW)
    assert "f9000" in problem(transforms, Tf("f0", "f9000", 0.1))


def test_pose_between_two_samples_goes_the_short_way():
    """From -110 to -130 degrees about z, between which quaternions of matrices change their sign."""
    poses = make_poses()
    for stamp_ns, degrees in ((NOW, -110.0), (NOW + 10 * MS, -130.0)):
        turn = (0.0, 0.0, np.sin(np.radians(degrees / 2)), np.cos(np.radians(degrees / 2)))
        transforms = [
            ("wrist", "base", (stamp_ns / S, 0.0, 0.0, *turn), stamp_ns),
            ("tip", "wrist", STILL, 0),
        ]
        poses.take(transforms[1:], True, stamp_ns)
        assert poses.take(transforms[:1], False, stamp_ns) == {"tf/arm": stamp_ns}
    between = poses.at(NOW + 5 * MS)["tf/arm"]
    np.testing.assert_allclose(matrix(between)[:2, 0], [-0.5, -np.sqrt(0.75)], atol=1e-9)
    assert between[0] == pytest.approx(50.005)


def test_one_frame_that_is_late_makes_the_pose_late_and_is_named_though_others_come():
    poses = make_poses()
    poses.take(arm(), False, NOW)
    for i in range(1, 30):
        poses.take(arm(stamp_ns=NOW + i * 10 * MS)[1:], False, NOW + i * 10 * MS)
    assert poses.newest_ns() == {"tf/arm": NOW}
    sentence = poses.problem("tf/arm", NOW + 290 * MS)
    assert "tf/arm" in sentence and "wrist" in sentence and "0.29" in sentence
    assert not poses.problem("tf/arm", NOW + 90 * MS)


def test_pose_far_from_the_image_or_without_stamps_is_named():
    poses = make_poses()
    assert "tip" in poses.problems(NOW, NOW)
    poses.take(arm(), False, NOW)
    assert not poses.problems(NOW, NOW - 90 * MS)
    assert "tip" in poses.problems(NOW, NOW - 110 * MS)
    poses.clear()
    poses.take(arm(stamp_ns=0), False, NOW)
    assert "no stamp" in poses.problems(NOW, NOW)
