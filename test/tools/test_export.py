"""A dataset holds what the bag did: pictures, joints and commands of one time, as LeRobot reads them."""

from __future__ import annotations

import argparse
import json
import os
import resource
from pathlib import Path

import av
import driven_bag
import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from driven_bag import APART, START_NS, Drive, S, level, measured, sent
from rclpy.serialization import serialize_message
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray

from vla_accel_msgs.msg import Motion
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.sensing.cameras.image import image_message
from vla_accel_ros.tools import cli
from vla_accel_ros.tools.export.convert import export
from vla_accel_ros.tools.export.dataset import QUANTILES, PixelCounts, of_numbers
from vla_accel_ros.tools.export.film import Film
from vla_accel_ros.tools.options import namespace_option

FPS = 30


def info(root: Path) -> dict:
    return json.loads((root / "meta" / "info.json").read_text())


def rows(root: Path, episode: int = 0) -> dict[str, np.ndarray]:
    """The columns of an episode's table."""
    table = pq.read_table(root / "data" / "chunk-000" / f"file-{episode:03d}.parquet")
    return {name: np.array(table[name].to_pylist()) for name in table.column_names}


def described(root: Path) -> list[dict]:
    """What meta/episodes says of each."""
    return pq.read_table(root / "meta" / "episodes" / "chunk-000" / "file-000.parquet").to_pylist()


def film(root: Path, camera: str, episode: int = 0) -> tuple[list[float], list[float]]:
    """Times and mean greys of the frames of a video."""
    path = root / "videos" / f"observation.images.{camera}" / "chunk-000" / f"file-{episode:03d}.mp4"
    with av.open(str(path)) as video:
        frames = [(frame.time, frame.to_ndarray(format="rgb24").mean()) for frame in video.decode(video=0)]
    return [time for time, _ in frames], [grey for _, grey in frames]


def test_export_frames_are_what_was_seen_felt_told_and_done_at_one_time(tmp_path):
    Drive(tmp_path / "bag")
    root = tmp_path / "dataset"
    assert export([tmp_path / "bag"], root) == 1
    table = rows(root)
    length = len(table["index"])
    assert length == 2 * FPS + 1 and info(root)["fps"] == FPS
    seconds = np.arange(length) / FPS
    expected = np.array([[measured(t, j) for j in range(6)] for t in seconds])
    np.testing.assert_allclose(table["observation.state"], expected, atol=1e-3)
    done = np.array([[sent(t + 1 / FPS, j) for j in range(6)] for t in seconds])
    np.testing.assert_allclose(table["action"], done, atol=1e-3)
    np.testing.assert_allclose(table["timestamp"], seconds, atol=1e-6)
    assert table["frame_index"].tolist() == table["index"].tolist() == [*range(length)]
    assert not table["episode_index"].any() and not table["task_index"].any()
    for camera in ("front", "wrist"):
        times, greys = film(root, camera)
        np.testing.assert_allclose(times, seconds, atol=1e-4)
        np.testing.assert_allclose(greys, [level(t) for t in seconds], atol=2.0)


def test_export_wrist_that_turns_on_across_pi_is_exported_without_a_swing(tmp_path, monkeypatch):
    """Its driver reports -pi..pi, the commands count on; both are given in the turn of the state."""
    document = yaml.safe_load(demo_contract().read_text())
    wrist = document["joints"][4]
    wrist.update(lower=-50.0, upper=50.0, continuous=True)

    def turning(seconds: float) -> float:
        return 2.5 * seconds

    def driver(seconds: float, joint: int) -> float:
        return float(np.angle(np.exp(1j * turning(seconds)))) if joint == 4 else measured(seconds, joint)

    def commands(seconds: float, joint: int) -> float:
        return turning(seconds) + 0.1 if joint == 4 else sent(seconds, joint)

    monkeypatch.setattr(driven_bag, "measured", driver)
    monkeypatch.setattr(driven_bag, "sent", commands)
    Drive(tmp_path / "bag", joints=document["joints"])
    for actions in ("commanded", "measured"):
        export([tmp_path / "bag"], tmp_path / actions, actions=actions)
        table = rows(tmp_path / actions)
        state, action = table["observation.state"][:, 4], table["action"][:, 4]
        seconds = np.arange(len(state)) / FPS
        np.testing.assert_allclose(np.exp(1j * state), np.exp(1j * 2.5 * seconds), atol=1e-3)
        assert np.abs(state).max() <= np.pi + 0.02 and np.ptp(state) > 6.0
        lead = 2.5 / FPS + (0.1 if actions == "commanded" else 0.0)
        np.testing.assert_allclose(action - state, lead, atol=2e-3)


@pytest.mark.parametrize("stamp_s", [0, 5_600])
def test_export_states_of_a_joint_without_a_stamp_or_from_the_future_are_left_out_and_named(
    tmp_path, stamp_s
):
    """A node repeats the elbow with the wrong stamp: its driver's own states are what is exported."""
    stray = JointState(name=["elbow_flex"], position=[9.0])
    stray.header.stamp.sec = stamp_s
    spoilt = {"joint_states": (serialize_message(stray), "sensor_msgs/msg/JointState")}
    Drive(tmp_path / "bag", spoilt=spoilt)
    lines: list[str] = []
    export([tmp_path / "bag"], tmp_path / "dataset", say=lines.append)
    elbow = rows(tmp_path / "dataset")["observation.state"][:, 2]
    np.testing.assert_allclose(elbow, [measured(t / FPS, 2) for t in range(61)], atol=1e-3)
    assert any("joint elbow_flex" in line for line in lines)


def test_export_layout_is_that_of_version_3(tmp_path):
    Drive(tmp_path / "bag")
    root = tmp_path / "dataset"
    export([tmp_path / "bag"], root)
    layout = info(root)
    assert layout["codebase_version"] == "v3.0" and layout["robot_type"] == "sim_arm"
    assert (layout["total_episodes"], layout["total_frames"], layout["total_tasks"]) == (1, 61, 1)
    assert layout["splits"] == {"train": "0:1"}
    image = layout["features"]["observation.images.front"]
    assert image["dtype"] == "video" and image["shape"] == [64, 96, 3]
    assert image["info"]["video.codec"] in ("av1", "h264") and image["info"]["video.fps"] == FPS
    action = layout["features"]["action"]
    assert action["names"][0] == "shoulder_pan" and action["shape"] == [6]
    (episode,) = described(root)
    assert episode["length"] == episode["dataset_to_index"] == 61 and episode["dataset_from_index"] == 0
    assert episode["tasks"] == ["reach the red block"]
    assert episode["videos/observation.images.front/to_timestamp"] == pytest.approx(61 / FPS)
    tasks = pq.read_table(root / "meta" / "tasks.parquet")
    assert tasks.to_pydict() == {"task_index": [0], "__index_level_0__": ["reach the red block"]}
    assert tasks.schema.pandas_metadata["index_columns"] == ["__index_level_0__"]
    stats = json.loads((root / "meta" / "stats.json").read_text())
    assert stats.keys() == layout["features"].keys()
    assert np.shape(stats["observation.images.wrist"]["q50"]) == (3, 1, 1)
    np.testing.assert_allclose(stats["action"]["mean"], rows(root)["action"].mean(axis=0), atol=1e-6)
    assert episode["stats/action/max"] == stats["action"]["max"]


def test_export_another_instruction_is_another_task_and_unless_told_otherwise_another_episode(tmp_path):
    words = ((0.0, "reach the red block"), (1.0, "reach the blue block"))
    Drive(tmp_path / "bag", told=words)
    export([tmp_path / "bag"], tmp_path / "one", split=False)
    assert rows(tmp_path / "one")["task_index"].tolist() == [0] * 30 + [1] * 31
    assert info(tmp_path / "one")["total_tasks"] == 2
    assert cli.main(["export", str(tmp_path / "bag"), "--output", str(tmp_path / "two")]) == 0
    assert [episode["length"] for episode in described(tmp_path / "two")] == [30, 31]
    second = rows(tmp_path / "two", 1)
    assert second["index"][0] == 30 and second["frame_index"][0] == 0 and second["timestamp"][0] == 0.0
    times, greys = film(tmp_path / "two", "wrist", 1)
    assert len(times) == 31 and greys[0] == pytest.approx(level(1.0), abs=2.0)


def test_export_what_the_recorder_came_too_late_to_hear_is_what_was_observed(tmp_path):
    red, blue, heard_s = "reach the red block", "reach the blue block", 1.5
    observed = tuple((tick / 10, red if tick < 10 else blue) for tick in range(20))
    Drive(tmp_path / "bag", told=(), observed=observed)
    export([tmp_path / "bag"], tmp_path / "out", split=False)
    assert rows(tmp_path / "out")["task_index"].tolist() == [0] * 30 + [1] * 31
    assert [episode["tasks"] for episode in described(tmp_path / "out")] == [[red, blue]]
    Drive(tmp_path / "other", told=((heard_s, red),), observed=observed)
    export([tmp_path / "other"], tmp_path / "both", split=False)
    assert rows(tmp_path / "both")["task_index"].tolist() == [0] * 30 + [1] * 15 + [0] * 16


def test_export_what_was_held_is_cut_and_counted(tmp_path, capsys):
    motion = ((0.0, Motion.RUNNING), (1.0, Motion.STOPPING), (1.2, Motion.HOLDING), (2.0, Motion.RUNNING))
    Drive(tmp_path / "bag", seconds=3.0, motion=motion)
    assert cli.main(["export", str(tmp_path / "bag"), "--output", str(tmp_path / "out")]) == 0
    assert [episode["length"] for episode in described(tmp_path / "out")] == [30, 31]
    assert "30 frames, 1.0 s" in capsys.readouterr().err
    assert film(tmp_path / "out", "wrist", 1)[1][0] == pytest.approx(level(2.0), abs=2.0)
    # Somebody may guide a held robot by hand: its measured joints move.
    assert export([tmp_path / "bag"], tmp_path / "guided", actions="measured") == 1
    Drive(tmp_path / "still", motion=((0.0, Motion.HOLDING),))
    with pytest.raises(ValueError, match="held"):
        export([tmp_path / "still"], tmp_path / "nothing")
    Drive(tmp_path / "lent", motion=((0.0, Motion.RELEASED),))
    assert export([tmp_path / "lent"], tmp_path / "whole") == 1


def test_export_frames_that_repeat_an_image_are_counted_for_each_camera(tmp_path, capsys):
    # The pictures come at 30 Hz; every third one of the wrist is missing.
    def seen(camera: str, t: float) -> bool:
        return camera == "front" or round(t * 30) % 3 != 2

    Drive(tmp_path / "bag", seen=seen)
    assert cli.main(["export", str(tmp_path / "bag"), "--output", str(tmp_path / "out")]) == 0
    output = capsys.readouterr().err
    assert "20 frames (33%)" in output and "camera wrist" in output and "camera front" not in output
    assert "20.2 times a second" in output, "of 61 frames in 61 / 30 s"


def test_export_camera_that_was_silent_ends_an_episode(tmp_path):
    Drive(tmp_path / "bag", seconds=4.0, seen=lambda camera, t: camera == "front" or not 1.01 < t < 3.0)
    assert export([tmp_path / "bag"], tmp_path / "dataset") == 2
    first, second = described(tmp_path / "dataset")
    assert first["length"] == pytest.approx(30 + 0.5 * FPS, abs=1)  # max_age_s is 0.5
    assert second["length"] == pytest.approx(30 + 0.5 * FPS, abs=2)


@pytest.mark.parametrize("by_s", [-1.5, -3.0, 3600.0, 1.7e9], ids=["a bit", "a reset", "an hour", "an epoch"])
def test_export_clock_that_was_set_begins_another_episode_and_no_picture_meets_joints_of_another_time(
    tmp_path, by_s
):
    observed = tuple((tick / 10, "reach the red block") for tick in range(40))
    Drive(tmp_path / "bag", seconds=4.0, set_by=(2.0, by_s), observed=observed)
    assert export([tmp_path / "bag"], tmp_path / "dataset") == 2
    for episode, begins_s in enumerate((0.0, 2.0)):
        table = rows(tmp_path / "dataset", episode)
        length = len(table["index"])
        assert length == pytest.approx(60, abs=2)
        seconds = begins_s + np.arange(length) / FPS
        expected = np.array([[measured(t, j) for j in range(6)] for t in seconds])
        np.testing.assert_allclose(table["observation.state"], expected, atol=1e-3)
        _, greys = film(tmp_path / "dataset", "wrist", episode)
        assert greys == pytest.approx([level(t) for t in seconds], abs=4)


def test_export_part_of_a_bag_whose_clock_was_set_is_named_when_it_is_left_out(tmp_path):
    Drive(tmp_path / "bag", seconds=4.0, set_by=(2.0, 3600.0))  # the instruction is known in the first part
    lines: list[str] = []
    assert export([tmp_path / "bag"], tmp_path / "dataset", say=lines.append) == 1
    assert "no instruction" in lines[0]


def test_export_messages_that_the_nodes_refused_are_named_and_left_out(tmp_path):
    picture = image_message(START_NS + S, "camera", np.zeros((4, 4, 3), np.uint8))
    spoilt = {
        "camera/front/image_raw": (b"", "sensor_msgs/msg/Image"),
        "camera/wrist/image_raw": (bytes(picture[:-1]), "sensor_msgs/msg/Image"),
        "joint_states": (b"\0\1\0\0\1", "sensor_msgs/msg/JointState"),
        "arm_controller/joint_trajectory": (b"\0\1\0\0", "trajectory_msgs/msg/JointTrajectory"),
    }
    Drive(tmp_path / "bag", spoilt=spoilt)
    lines: list[str] = []
    assert export([tmp_path / "bag"], tmp_path / "dataset", say=lines.append) == 1
    assert len(rows(tmp_path / "dataset")["index"]) == 2 * FPS + 1
    assert "4 messages" in lines[0] and "/arm/camera/front/image_raw" in lines[0]


def test_export_of_a_bag_of_several_robots_the_one_that_is_named_is_exported(tmp_path, capsys):
    Drive(tmp_path / "bag", seconds=0.5, robots=("left", "right"))
    command = ["export", str(tmp_path / "bag"), "--output", str(tmp_path / "out")]
    for options in ([], ["--namespace", "third"]):
        assert cli.main([*command, *options]) == 2
        assert "give --namespace with one of left, right" in capsys.readouterr().err
    assert cli.main([*command, "--namespace", "/right"]) == 0
    table = rows(tmp_path / "out")
    expected = [[measured(tick / FPS, j) + APART for j in range(6)] for tick in range(len(table["index"]))]
    np.testing.assert_allclose(table["observation.state"], expected, atol=1e-3)


@pytest.mark.parametrize(("given", "namespace"), [((), ""), (("/",), "/"), (("/right/",), "/right")])
def test_export_robot_without_a_namespace_is_named_by_a_slash(given, namespace):
    parser = argparse.ArgumentParser()
    namespace_option(parser, in_bag=True)
    assert parser.parse_args(["--namespace", *given] if given else []).namespace == namespace


@pytest.mark.parametrize(
    ("ahead_s", "position", "pictures"),
    [
        (10.0, 0.0, False),
        (1e9, 0.0, False),
        (1e9, 0.0, True),
        *((1.0 + 1 / FPS, wild, False) for wild in (1e300, 1e6, np.nan, np.inf)),
    ],
)
def test_export_leaves_out_what_has_a_stamp_far_ahead_or_a_position_that_no_joint_can_have(
    tmp_path, ahead_s, position, pictures
):
    names = list(Contract.load(demo_contract()).joint_names)
    stray, stamp_ns = JointState(name=names, position=[position] * len(names)), START_NS + round(ahead_s * S)
    stray.header.stamp.sec, stray.header.stamp.nanosec = divmod(stamp_ns, S)
    spoilt = {"joint_states": (serialize_message(stray), "sensor_msgs/msg/JointState")}
    if pictures:
        picture = bytes(image_message(stamp_ns, "camera", np.zeros((64, 96, 3), np.uint8)))
        for name in ("front", "wrist"):
            spoilt[f"camera/{name}/image_raw"] = (picture, "sensor_msgs/msg/Image")
    Drive(tmp_path / "bag", spoilt=spoilt)
    assert export([tmp_path / "bag"], tmp_path / "dataset") == 1
    table = rows(tmp_path / "dataset")
    assert len(table["index"]) == 2 * FPS + 1 and np.abs(table["observation.state"]).max() < 2.0


def test_export_several_bags_are_several_episodes(tmp_path):
    Drive(tmp_path / "a", told=((0.0, "reach the red block"),))
    Drive(tmp_path / "b", seconds=1.0, told=((0.0, "put the red block on the pad"),))
    assert export([tmp_path / "a", tmp_path / "b"], tmp_path / "dataset") == 2
    assert [e["dataset_from_index"] for e in described(tmp_path / "dataset")] == [0, 61]
    assert rows(tmp_path / "dataset", 1)["task_index"].tolist() == [1] * 31


def test_export_numbers_are_in_the_policys_units(tmp_path):
    joints = Drive(tmp_path / "plain", seconds=0.5).contract.joints
    listed = [
        {"name": j.name, "lower": j.lower, "upper": j.upper, "velocity": j.velocity, "action": j.action}
        for j in joints
    ]
    listed[0] |= {"unit": "deg", "sign": -1, "offset": 90.0}
    Drive(tmp_path / "bag", seconds=0.5, joints=listed, acceleration=20.0)
    export([tmp_path / "bag"], tmp_path / "dataset")
    table = rows(tmp_path / "dataset")
    assert table["observation.state"][0, 0] == pytest.approx(90.0 - np.degrees(measured(0.0, 0)), abs=0.1)
    assert table["action"][0, 0] == pytest.approx(90.0 - np.degrees(sent(1 / FPS, 0)), abs=0.1)


def test_export_pictures_are_those_that_the_policy_gets(tmp_path):
    """Turned as the contract says: the camera's picture is dark but for its upper left quarter."""
    camera = {"topic": "camera/front/image_raw", "image": "base_0_rgb", "rate_hz": 30, "max_age_s": 0.5}
    picture = np.zeros((48, 64, 3), np.uint8)
    picture[:24, :32] = 240
    cameras = {"front": {**camera, "rotation": 90}}
    Drive(tmp_path / "bag", seconds=0.5, cameras=cameras, picture=picture)
    export([tmp_path / "bag"], tmp_path / "dataset")
    assert info(tmp_path / "dataset")["features"]["observation.images.front"]["shape"] == [64, 48, 3]
    path = tmp_path / "dataset" / "videos" / "observation.images.front" / "chunk-000" / "file-000.mp4"
    with av.open(str(path)) as video:
        frame = next(video.decode(video=0)).to_ndarray(format="rgb24")
    quarters = [frame[:32, 24:], frame[:32, :24], frame[32:, :24], frame[32:, 24:]]
    assert [quarter.mean() > 120 for quarter in quarters] == [True, False, False, False]


@pytest.mark.parametrize(
    "kind", [{"kind": "forward_command"}, {"kind": "parallel_gripper", "action": "all/gripper_cmd"}]
)
def test_export_commands_may_be_bare_positions_and_actions_may_be_measured(tmp_path, kind):
    names = list(Contract.load(demo_contract()).joint_names)
    controllers = [{"topic": "all/commands", **kind, "rate_hz": 100.0, "joints": names}]
    Drive(tmp_path / "bag", controllers=controllers)
    export([tmp_path / "bag"], tmp_path / "forward")
    command_s = np.floor((np.arange(61) + 1) / 3) / 10  # a command every 0.1 s
    expected = [sent(t, 2) for t in np.minimum(command_s, 2.0)]
    np.testing.assert_allclose(rows(tmp_path / "forward")["action"][:, 2], expected, atol=1e-5)
    Drive(tmp_path / "led", commands=False)
    with pytest.raises(ValueError, match="arm_controller/joint_trajectory: give --actions"):
        export([tmp_path / "led"], tmp_path / "refused")
    export([tmp_path / "led"], tmp_path / "measured", actions="measured")
    table = rows(tmp_path / "measured")
    np.testing.assert_allclose(table["action"][:-1], table["observation.state"][1:], atol=1e-3)


@pytest.mark.parametrize("data", [[0.0] * 3, [], [np.nan] * 6, [1e300] * 6])
def test_export_bare_positions_that_are_none_are_named_and_left_out(tmp_path, data):
    names = list(Contract.load(demo_contract()).joint_names)
    controllers = [{"topic": "commands", "kind": "forward_command", "rate_hz": 100.0, "joints": names}]
    spoilt = serialize_message(Float64MultiArray(data=data)), "std_msgs/msg/Float64MultiArray"
    Drive(tmp_path / "bag", controllers=controllers, spoilt={"commands": spoilt})
    lines: list[str] = []
    assert export([tmp_path / "bag"], tmp_path / "dataset", say=lines.append) == 1
    assert len(rows(tmp_path / "dataset")["index"]) == 2 * FPS + 1
    assert "1 messages" in lines[0] and "/arm/commands" in lines[0] and "6 positions" in lines[0]


def test_export_command_line_says_what_is_missing(tmp_path, capsys):
    Drive(tmp_path / "bag", seconds=1.0, told=())
    command = ["export", str(tmp_path / "bag"), "--output", str(tmp_path / "out")]
    assert cli.main(command) == 2
    assert "has no instruction: give --task TEXT" in capsys.readouterr().err
    assert cli.main([*command, "--task", "wave", "--fps", "15"]) == 0
    printed = capsys.readouterr()
    assert f"{tmp_path / 'out'}: 1 episodes" in printed.out and "16 frames, 1.1 s" in printed.err
    assert described(tmp_path / "out")[0]["tasks"] == ["wave"]
    assert cli.main([*command, "--task", "wave"]) == 2
    assert str(tmp_path / "out") in capsys.readouterr().err
    Drive(tmp_path / "odd", seconds=1.0, size=(63, 64))
    assert cli.main(["export", str(tmp_path / "odd"), "--output", str(tmp_path / "odd_out")]) == 2
    assert "63 x 64" in capsys.readouterr().err
    assert not (tmp_path / "odd_out").exists()


def test_export_that_ends_early_leaves_nothing_and_can_be_made_again(tmp_path, capsys):
    for name in ("a", "b"):
        Drive(tmp_path / name, seconds=1.0)
    bags, out = [tmp_path / "a", tmp_path / "b"], tmp_path / "out"

    def interrupt(_: str) -> None:
        assert any(path.is_file() for path in out.rglob("*"))  # the first bag's episode
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(bags, out, say=interrupt)
    assert not out.exists()
    out.mkdir()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))  # as a disk that is full
    try:
        status = cli.main(["export", str(bags[0]), "--output", str(out)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert status == 2, capsys.readouterr().err
    assert out.is_dir() and not any(out.iterdir())
    assert export(bags, out) == 2 and info(out)["total_episodes"] == 2


def test_export_pixel_counts_are_the_statistics_of_the_pixels():
    rng = np.random.default_rng(0)
    images = rng.integers(10, 200, (5, 20, 30, 3), dtype=np.uint8)
    parts = PixelCounts(), PixelCounts()
    for number, image in enumerate(images):
        parts[number % 2].add(image)
    statistics = (parts[0] + parts[1]).statistics()
    pixels = images.reshape(-1, 3) / 255.0
    for name, value in (
        ("min", pixels.min(0)),
        ("max", pixels.max(0)),
        ("mean", pixels.mean(0)),
        ("std", pixels.std(0)),
    ):
        np.testing.assert_allclose(np.ravel(statistics[name]), value, atol=1e-9)
    for name, share in QUANTILES.items():
        np.testing.assert_allclose(
            np.ravel(statistics[name]), np.quantile(pixels, share, axis=0), atol=1 / 255
        )
    assert statistics["count"] == [5]


def test_export_statistics_of_numbers_are_of_each_column():
    statistics = of_numbers(np.array([[1.0, 5.0], [3.0, 5.0]]))
    assert (statistics["min"], statistics["max"], statistics["mean"], statistics["std"]) == (
        [1, 5],
        [3, 5],
        [2, 5],
        [1, 0],
    )
    assert statistics["count"] == [2] and statistics["q50"] == [2, 5]


def test_export_film_leaves_the_scheduling_of_the_process_alone(tmp_path):
    """SVT-AV1 would make it a real-time task, and all processes begun after it, where it may: as root."""
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    threads = set(os.listdir("/proc/self/task"))
    film = Film(tmp_path / "film.mp4", FPS, 64, 64)
    for grey in range(10):
        film.add(np.full((64, 64, 3), grey, np.uint8))
        for thread in (0, *map(int, set(os.listdir("/proc/self/task")) - threads)):
            assert os.sched_getscheduler(thread) == os.SCHED_OTHER
    film.close()
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    with av.open(str(tmp_path / "film.mp4")) as video:
        assert len([*video.decode(video=0)]) == 10


STEPS = ((0.5, "grasp the cup"), (0.95, "lift the cup"), (1.3, ""), (1.6, "open the gripper"))
LANGUAGE = {
    "language_persistent": ("role", "content", "style", "timestamp", "camera", "tool_calls"),
    "language_events": ("role", "content", "style", "camera", "tool_calls"),
}
"""LeRobot's columns (lerobot#3467) and the fields of their rows."""


def test_export_subtasks_are_lerobots_persistent_rows_of_language(tmp_path):
    Drive(tmp_path / "bag", subtasks=STEPS)
    Drive(tmp_path / "silent")
    root = tmp_path / "dataset"
    assert export([tmp_path / "silent", tmp_path / "bag"], root) == 2
    tables = [pq.read_table(path) for path in sorted((root / "data").rglob("*.parquet"))]
    assert tables[0].schema.equals(tables[1].schema)  # they are read as one table
    for name, fields in LANGUAGE.items():
        assert info(root)["features"][name] == {"dtype": "language", "shape": [1], "names": None}
        rows_of_frame = tables[1].schema.field(name).type.value_type
        assert tuple(field.name for field in rows_of_frame) == fields
        assert [field.name for field in rows_of_frame if not field.nullable] == [
            field for field in fields if field in ("role", "timestamp")
        ]
        assert not any(map(len, tables[0][name].to_pylist()))
    assert not any(map(len, tables[1]["language_events"].to_pylist()))
    listed = tables[1]["language_persistent"].to_pylist()
    assert all(row == listed[0] for row in listed) and len(listed) == 2 * FPS + 1
    frames_s = tables[1]["timestamp"].to_pylist()
    for row in listed[0]:
        assert (row["role"], row["style"]) == ("assistant", "subtask") and row["timestamp"] in frames_s
        assert row["camera"] is row["tool_calls"] is None
    words = [(row["content"], row["timestamp"]) for row in listed[0]]
    assert [text for text, _ in words] == [STEPS[0][1], STEPS[1][1], "reach the red block", STEPS[3][1]]
    for (_, at_s), (begun_s, _) in zip(words, STEPS):
        assert at_s == pytest.approx(np.ceil(begun_s * FPS - 1e-6) / FPS)


def test_export_bag_without_subtasks_has_no_columns_of_language(tmp_path):
    Drive(tmp_path / "bag", seconds=1.0)
    export([tmp_path / "bag"], tmp_path / "dataset")
    assert not LANGUAGE.keys() & rows(tmp_path / "dataset").keys()
    assert not LANGUAGE.keys() & info(tmp_path / "dataset")["features"].keys()
