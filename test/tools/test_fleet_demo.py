"""`vla fleet-demo` from outside: simulated arms, the bundled policy, one scheduler; both are killed."""

from __future__ import annotations

import json
import signal

import pytest
from running_demo import Demo

from vla_accel_ros.tools.cli import main


def test_three_robots_do_their_tasks_although_one_and_the_scheduler_are_killed(tmp_path, ros_domain):
    with Demo(
        tmp_path, ros_domain, "--episodes", "1", "--svg", str(tmp_path / "table.svg"), subcommand="fleet-demo"
    ) as demo:
        assert demo.end() == 0, "\n".join(demo.lines) + demo.errors
        assert demo.alive() == []
    assert demo.shared_memory() == []
    assert any("SIGKILL to robot_2/fleet_inference and robot_2/trajectory" in line for line in demo.lines)
    assert any("SIGKILL to fleet_scheduler" in line for line in demo.lines)
    assert any("fifo: 3 robots are served, 0 refused" in line for line in demo.lines)
    assert any("simulated time is as slow as the machine needs" in line for line in demo.lines)
    assert "/robot_3" in (tmp_path / "table.svg").read_text()

    figures = json.loads((demo.out / "fleet_demo.json").read_text())
    assert set(figures["robots"]) == {"/robot_1", "/robot_2", "/robot_3"}
    for robot in figures["robots"].values():
        assert robot["succeeded"]
        assert robot["tasks_done"] == robot["tasks"] == 1
        assert robot["chunks"] > 0
    one, scheduler = figures["faults"]
    assert one["killed"] == ["robot_2/fleet_inference", "robot_2/trajectory"]
    assert scheduler["killed"] == ["fleet_scheduler"]
    for fault in figures["faults"]:
        assert fault["moving_again_s"]
        assert all(again_s > 2.0 for again_s in fault["moving_again_s"].values())  # started again after 2 s
    time = figures["simulated_time"]
    assert 0.0 < time["factor"]["least"] <= time["factor"]["mean"] <= 1.0
    assert 0.0 < time["seconds"] <= time["real_seconds"]


def test_ctrl_c_after_a_robot_was_killed_leaves_nothing(tmp_path, ros_domain):
    asked = ["--robots", "1", "--episodes", "9", "--kill", "robot"]
    with Demo(tmp_path, ros_domain, *asked, subcommand="fleet-demo") as demo:
        demo.read_until("robot_1/trajectory was ended by SIGKILL: it is started again")
        demo.process.send_signal(signal.SIGINT)
        assert demo.end() == 128 + signal.SIGINT
        assert demo.alive() == []
    assert demo.shared_memory() == []
    assert demo.errors == ""
    assert not (demo.out / "fleet_demo.json").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--robots", "0"], "--robots is 0: give 1 to 16"),
        (["--episodes", "0"], "--episodes is 0: give at least 1"),
        (["--kill", "robot,me"], "--kill has 'me': give some of robot, scheduler, comma separated"),
        (["--policy", "luck"], "luck"),
        (["--seed", "-1"], "--seed is -1: give 0 or more"),
        (["--domain", "300"], "--domain is 300: give 0 to 232"),
    ],
)
def test_wrong_arguments_are_one_sentence_and_status_2(arguments, sentence, capsys):
    assert main(["fleet-demo", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("vla fleet-demo: ")
    assert sentence in error
    assert error.count("\n") == 1
