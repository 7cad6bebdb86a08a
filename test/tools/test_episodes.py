"""Marked episodes of a bag: what becomes of them in a dataset, and what is wrong with them."""

from __future__ import annotations

import numpy as np
import pytest
from driven_bag import Drive, measured
from test_export import FPS, described, info, rows

from vla_accel_ros.tools import cli
from vla_accel_ros.tools.export.convert import export
from vla_accel_ros.tools.export.quality import report

MARKS = (
    (0.5, "start", "fold"),
    (1.0, "success", ""),
    (1.2, "start", ""),
    (1.7, "stop", ""),
    (2.0, "start", ""),
    (2.5, "discard", ""),
    (2.6, "start", "fold"),
    (3.1, "failure", ""),
)


def test_export_marked_episodes_have_their_outcome_task_and_extent(tmp_path):
    Drive(tmp_path / "bag", seconds=4.0, marks=MARKS)
    root = tmp_path / "dataset"
    assert export([tmp_path / "bag"], root) == 3
    assert [row["outcome"] for row in described(root)] == ["success", "unlabeled", "failure"]
    assert [row["tasks"] for row in described(root)] == [["fold"], ["reach the red block"], ["fold"]]
    for episode, begin_s in enumerate((0.5, 1.2, 2.6)):
        table = rows(root, episode)
        first = np.ceil(begin_s * FPS - 1e-9)
        expected = [measured(first / FPS, joint) for joint in range(6)]
        np.testing.assert_allclose(table["observation.state"][0], expected, atol=1e-3)
        assert len(table["index"]) in (15, 16)
        assert table["next.done"].tolist() == [False] * (len(table["index"]) - 1) + [True]
        assert table["next.success"].any() == table["next.success"][-1] == (episode == 0)
    for name in ("next.done", "next.success"):
        assert info(root)["features"][name] == {"dtype": "bool", "shape": [1], "names": None}


def test_export_episode_that_a_hold_cuts_is_done_only_at_its_end(tmp_path):
    held = ((0.8, 3), (1.4, 1))
    Drive(tmp_path / "bag", seconds=3.0, motion=held, marks=((0.3, "start", ""), (2.0, "success", "")))
    root = tmp_path / "dataset"
    assert export([tmp_path / "bag"], root) == 2
    assert [row["outcome"] for row in described(root)] == ["success", "success"]
    assert [rows(root, episode)["next.done"].sum() for episode in (0, 1)] == [0, 1]


TELEOP = {"topic": "leader/joint_states", "rate_hz": 50, "max_age_s": 0.2}


def test_export_episode_with_a_correction_is_whole_and_says_whose_each_frame_is(tmp_path):
    states = (
        (0.0, 1),
        (1.0, 6),
        (1.5, 5),
        (2.2, 1),
    )  # policy, on the way to the leader arm, a person, policy
    marks = ((0.3, "start", ""), (2.8, "success", ""))
    Drive(tmp_path / "bag", seconds=3.0, motion=states, marks=marks, teleop=TELEOP)
    root = tmp_path / "dataset"
    assert export([tmp_path / "bag"], root) == 1
    table, layout = rows(root, 0), info(root)["features"]
    assert layout["intervention"] == {"dtype": "bool", "shape": [1], "names": None}
    times_s = np.array([t / FPS for t in range(9, 85) if not 30 <= t < 45])
    human = (times_s >= 1.5) & (times_s < 2.2)
    np.testing.assert_array_equal(table["intervention"], human)
    assert layout["control_source"] == {"dtype": "string", "shape": [1], "names": None}
    np.testing.assert_array_equal(table["control_source"], np.where(human, "teleop", "policy"))
    expected = [[measured(t, joint) for joint in range(6)] for t in times_s]
    joints = np.array(table["observation.state"].tolist())
    np.testing.assert_allclose(joints, np.array(expected), atol=1e-3)
    np.testing.assert_allclose(table["timestamp"], np.arange(len(times_s)) / FPS, atol=1e-6)
    assert table["next.success"].sum() == 1 and described(root)[0]["length"] == len(times_s)
    assert described(root)[0]["stats/intervention/mean"] == pytest.approx([table["intervention"].mean()])


def test_export_robot_that_nobody_may_take_over_has_no_column_of_it(tmp_path):
    Drive(tmp_path / "bag", seconds=1.0)
    export([tmp_path / "bag"], tmp_path / "dataset")
    assert "intervention" not in info(tmp_path / "dataset")["features"]
    Drive(tmp_path / "taken", seconds=1.0, teleop=TELEOP)
    with pytest.raises(ValueError, match="teleop"):
        export([tmp_path / "bag", tmp_path / "taken"], tmp_path / "both")


def test_export_of_one_outcome_leaves_out_the_others(tmp_path, capsys):
    Drive(tmp_path / "bag", seconds=4.0, marks=MARKS)
    bag = str(tmp_path / "bag")
    assert cli.main(["export", bag, "--output", str(tmp_path / "good"), "--outcome", "success"]) == 0
    assert [row["outcome"] for row in described(tmp_path / "good")] == ["success"]
    Drive(tmp_path / "plain", seconds=1.0)
    plain, output = str(tmp_path / "plain"), str(tmp_path / "none")
    assert cli.main(["export", plain, "--output", output, "--outcome", "success"]) == 2
    assert "success" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_export_bags_with_and_without_marks_are_refused_together(tmp_path):
    Drive(tmp_path / "marked", seconds=4.0, marks=MARKS)
    Drive(tmp_path / "plain", seconds=1.0)
    with pytest.raises(ValueError, match="plain has none"):
        export([tmp_path / "marked", tmp_path / "plain"], tmp_path / "dataset")


def test_export_marked_task_needs_no_instruction(tmp_path):
    Drive(tmp_path / "bag", told=(), marks=((0.5, "start", "fold"), (1.5, "success", "")))
    assert export([tmp_path / "bag"], tmp_path / "dataset") == 1
    assert described(tmp_path / "dataset")[0]["tasks"] == ["fold"]


def test_quality_of_a_sound_recording_names_no_fault(tmp_path):
    Drive(tmp_path / "bag", seconds=4.0, marks=MARKS)
    qualities = report(tmp_path / "bag")
    assert [quality.faults for quality in qualities] == [(), (), ()]
    assert [quality.seconds for quality in qualities] == pytest.approx([0.5, 0.5, 0.5], abs=0.01)
    assert "success" in str(qualities[0]) and "failure" in str(qualities[2])


def test_quality_counts_repeated_images_gaps_frozen_joints_and_held_time(tmp_path):
    """One of ten front images is absent, and the elbow stands for a second."""

    def felt(seconds: float, joint: int) -> float:
        return measured(min(seconds, 1.0) if joint == 2 and seconds < 2.0 else seconds, joint)

    def seen(camera: str, seconds: float) -> bool:
        return camera != "front" or round(seconds * 30) % 10 != 5

    Drive(tmp_path / "bag", seconds=3.0, felt=felt, seen=seen, motion=((2.2, 3), (2.7, 1)))
    (quality,) = report(tmp_path / "bag")
    text = str(quality)
    assert "front" in text and "9 came after a gap" in text and "wrist" not in text
    assert "elbow_flex" in text and f"{measured(1.0, 2):.3f} for 1.0 s" in text
    assert text.count("joint ") == 1 and "held for 0.5 s" in text
    Drive(tmp_path / "still", seconds=1.0, picture=np.zeros((64, 96, 3), np.uint8))
    assert "30 repeat" in str(report(tmp_path / "still")[0])


def test_record_report_prints_each_bag_and_fails_on_faults(tmp_path, capsys):
    Drive(tmp_path / "good", seconds=4.0, marks=MARKS)
    Drive(tmp_path / "bad", seconds=1.0, seen=lambda camera, seconds: camera == "front" or seconds > 0.9)
    assert cli.main(["record", "--report", str(tmp_path / "good")]) == 0
    printed = capsys.readouterr().out
    assert printed.count("nothing wrong") == 3 and f"vla export {tmp_path / 'good'}" in printed
    still = np.zeros((64, 96, 3), np.uint8)
    Drive(tmp_path / "still", seconds=1.0, picture=still)
    assert cli.main(["record", "--report", str(tmp_path / "good"), str(tmp_path / "still")]) == 1
