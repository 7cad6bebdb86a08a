"""The state of a hand by tf in an observation, and what is said when it cannot be known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hand_arms import EXPLICIT, load, text, ur5e

from vla_accel_ros.fleet.robot.observing import EncodedIngest
from vla_accel_ros.sensing.cameras.image import image_message
from vla_accel_ros.sensing.ingest import Ingest

S = 1_000_000_000
MS = S // 1000
NOW = 50 * S
FLANGE = ("tool0", "l6", (0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 1.0), 0)


def wrist(x: float, stamp_ns: int) -> tuple:
    return ("l6", "l0", (x, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0), stamp_ns)


class Robot:
    """Joints at zero, pictures, and a hand whose x is that of tf."""

    def __init__(self, folder: Path, kind: type[Ingest] = Ingest, more: str = "") -> None:
        self.contract = load(folder, text(EXPLICIT + "state_by: tf, " + more))
        self.ingest = kind(self.contract) if kind is EncodedIngest else kind(self.contract, page_lock=False)
        self.ingest.instruct("go", "")
        self.ingest.transforms([FLANGE], True, 0)

    def tf(self, *stamps_ns: int) -> None:
        """The hand moves by 1 m/s."""
        for stamp_ns in stamps_ns:
            self.ingest.transforms([wrist((stamp_ns - NOW) / S, stamp_ns)], False, stamp_ns)

    def rest(self, stamp_ns: int) -> None:
        """All but tf."""
        for joint_ns in (stamp_ns - 10 * MS, stamp_ns + 10 * MS):
            self.ingest.joints(self.contract.joint_names, [0.0] * 6 + [0.02], joint_ns, joint_ns)
        picture = np.zeros((4, 6, 3), np.uint8)
        self.ingest.image("top", bytes(image_message(stamp_ns, "top", picture)), stamp_ns)


@pytest.mark.parametrize("kind", [Ingest, EncodedIngest])
def test_state_is_the_pose_by_tf_at_the_image_and_not_that_of_the_joints(tmp_path, kind):
    robot = Robot(tmp_path, kind)
    robot.tf(NOW, NOW + 20 * MS)
    robot.rest(NOW + 5 * MS)
    observation = robot.ingest.observe(NOW + 20 * MS)
    assert observation is not None, robot.ingest.waiting_for
    np.testing.assert_allclose(observation.state, [0.005, 0, 0.5, 0, 0, 0, 0.02], atol=1e-7)
    assert abs(ur5e(np.zeros(6))[0, 3] - 0.005) > 0.1
    newest = robot.ingest.newest_state()
    assert newest is not None and newest[1] == NOW + 15 * MS and newest[0][0] == pytest.approx(0.015)


def test_equal_transforms_are_equal_states_to_the_bit(tmp_path):
    states = []
    for _ in range(2):
        robot = Robot(tmp_path)
        robot.tf(*(NOW + i * 7 * MS for i in range(9)))
        robot.rest(NOW + 31 * MS)
        states.append(robot.ingest.observe(NOW + 60 * MS).state.tobytes())
    assert states[0] == states[1]


def test_static_transforms_outlast_an_activation_and_the_others_do_not(tmp_path):
    robot = Robot(tmp_path)
    robot.tf(NOW)
    robot.ingest.clear()
    assert "tf/arm" not in robot.ingest.stamps_ns()
    robot.rest(NOW + 100 * MS)
    assert robot.ingest.observe(NOW + 110 * MS) is None and "tf/arm" in robot.ingest.waiting_for
    robot.tf(NOW + 100 * MS)
    assert robot.ingest.observe(NOW + 110 * MS) is not None


def test_frame_that_stays_behind_is_named_and_there_is_no_observation(tmp_path):
    robot = Robot(tmp_path)
    robot.tf(NOW)
    robot.rest(NOW + 150 * MS)
    now_ns = NOW + 160 * MS
    robot.ingest.transforms([("gripper", "tool0", FLANGE[2], now_ns)], False, now_ns)
    newest = robot.ingest.newest_state()
    assert robot.ingest.observe(now_ns) is None and newest is not None and newest[1] == NOW
    for sentence in (robot.ingest.waiting_for, robot.ingest.problem("tf/arm", now_ns)):
        assert "tf/arm" in sentence and "l6" in sentence and "0.16" in sentence
    assert robot.ingest.stamps_ns()["tf/arm"] == NOW


def test_broken_transform_is_named_at_once(tmp_path):
    robot = Robot(tmp_path)
    robot.tf(NOW)
    robot.rest(NOW + 5 * MS)
    robot.ingest.transforms([wrist(np.nan, NOW + 8 * MS)], False, NOW + 8 * MS)
    assert robot.ingest.observe(NOW + 10 * MS) is None
    assert "l6" in robot.ingest.waiting_for and "finite" in robot.ingest.problem("tf/arm", NOW + 10 * MS)


def test_limit_of_its_own_counts(tmp_path):
    robot = Robot(tmp_path, more="tf_max_age_s: 0.3, ")
    robot.tf(NOW)
    robot.rest(NOW + 150 * MS)
    assert robot.ingest.observe(NOW + 160 * MS) is not None
