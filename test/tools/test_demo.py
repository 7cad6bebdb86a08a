"""`vla demo` from outside, as a user runs it: real processes, real DDS, real physics, and nothing left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import cv2
import pytest
from builders import CALM, make_checkpoint
from running_demo import Demo

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.tools.cli import main

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A policy of a few thousand random parameters."""
    return make_checkpoint(tmp_path / "model", reach=CALM)


def test_two_episodes_leave_figures_a_picture_and_nothing_else(tmp_path, model, ros_domain):
    further = tmp_path / "elsewhere" / "figures.json"
    with Demo(
        tmp_path,
        ros_domain,
        "--episodes",
        "2",
        "--tasks",
        "reach",
        "--model",
        str(model),
        "--json",
        str(further),
    ) as demo:
        assert demo.end() == 0, demo.errors
        assert demo.alive() == []
    assert demo.shared_memory() == []
    assert sum(line.startswith("episode ") for line in demo.lines) == 2
    assert any("age, image to trajectory" in line for line in demo.lines)
    assert any(f"ROS_DOMAIN_ID={ros_domain} " in line and line.endswith(" look") for line in demo.lines)

    figures = json.loads(further.read_text())
    assert figures == json.loads((demo.out / "demo.json").read_text())
    assert figures["episodes"] == len(figures["records"]) == 2
    assert figures["interrupted"] == 0
    assert set(figures["success_rate"]) == {"reach"}
    won, played = figures["successes"]["reach"]
    wilson = {0: (0.0, 0.658), 1: (0.095, 0.905), 2: (0.342, 1.0)}
    assert played == 2 and figures["success_interval_95"]["reach"] == pytest.approx(wilson[won], abs=1e-3)
    for name, expected in {"vision": 10, "action": 10, "front": 30, "wrist": 30, "joint_states": 100}.items():
        assert 0 < figures["rates_hz"][name] < 1.5 * expected
    assert 0 < figures["age_ms"]["p50"] <= figures["age_ms"]["p99"]
    assert figures["age_ms"]["n"] >= 2
    assert figures["jerk"]["commanded"] > 0
    assert figures["jerk"]["measured"] > 0
    assert 0 < figures["real_time_factor"]["mean"] < 1.01
    assert set(figures["cpu_share"]) == {"demo", "sim_robot", "inference", "trajectory"}
    assert figures["machine"]["cores"] == os.cpu_count()
    assert isinstance(figures["busy_host"], str)
    assert {"versions", "date", "seed"} <= set(figures)
    first, second = figures["records"]
    assert len(first["said"]) == 1
    assert len(second["said"]) == 2
    assert second["said"][0]["instruction"] != second["said"][1]["instruction"] == second["instruction"]

    picture = cv2.imread(str(demo.out / "demo.png"))
    assert picture is not None
    assert picture.shape[1] > 1000
    assert len(set(picture[::8, ::8].reshape(-1).tolist())) > 20


def test_a_killed_node_comes_back_and_ctrl_c_ends_everything(tmp_path, model, ros_domain):
    """With rings, which a killed process cannot take along."""
    asked = ["--episodes", "9", "--tasks", "reach", "--ring"]
    with Demo(tmp_path, ros_domain, *asked, "--model", str(model)) as demo:
        demo.read_until("episode 1/9")
        (inference,) = demo.alive("nodes.inference")
        os.kill(inference, signal.SIGKILL)
        demo.read_until("inference was ended by SIGKILL: starting it again")
        demo.read_until("episode 2/9")
        demo.process.send_signal(signal.SIGINT)
        assert demo.end() == 128 + signal.SIGINT
        assert demo.alive() == []
    assert demo.shared_memory() == []
    assert demo.errors == ""
    assert any(line.startswith("│ episodes") for line in demo.lines)
    assert sorted(path.name for path in demo.out.iterdir()) == ["contract.yaml", "logs"]
    contract = Contract.load(demo.out / "contract.yaml")
    assert {camera.transport for camera in contract.cameras} == {"ring"}
    for log in (demo.out / "logs").iterdir():
        assert "Traceback" not in log.read_text()


def test_a_model_that_cannot_be_loaded_ends_it_with_the_nodes_own_sentence(tmp_path, ros_domain):
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"no weights")
    with Demo(tmp_path, ros_domain, "--episodes", "1", "--model", str(model)) as demo:
        assert demo.end() == 1
        assert demo.alive() == []
    assert demo.errors.startswith("vla demo: inference cannot configure: ")
    assert f"the end of {demo.out / 'logs' / 'inference.log'}:" in demo.errors
    assert "Traceback" not in demo.errors
    assert demo.shared_memory() == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--episodes", "0"], "--episodes is 0: give at least 1"),
        (["--seconds", "-1"], "--seconds is -1.0: give a time above 0"),
        (["--tasks", "reach,dance"], "tasks has 'dance': give some of reach, place, follow"),
        (["--seed", "-1"], "seed is -1: give 0 or more"),
        (["--domain", "300"], "--domain is 300: give 0 to 232"),
        (["--model", "nowhere"], "--model nowhere holds no model.safetensors: give a checkpoint folder"),
        (["--contract", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_wrong_arguments_are_one_sentence_and_status_2(arguments, sentence, capsys):
    assert main(["demo", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("vla demo: ")
    assert sentence in error
    assert error.count("\n") == 1


def test_a_contract_of_another_robot_is_refused(tmp_path, capsys):
    text = (ROOT / "config/contracts/sim_arm.yaml").read_text().replace("wrist_roll", "wrist_yaw")
    other = tmp_path / "other.yaml"
    other.write_text(text)
    assert main(["demo", "--contract", str(other)]) == 2
    assert "wrist_yaw" in capsys.readouterr().err


def test_unknown_words_are_refused(capsys):
    for arguments in (["dance"], ["demo", "--mode", "jump"]):
        with pytest.raises(SystemExit) as end:
            main(arguments)
        assert end.value.code == 2
    error = capsys.readouterr().err
    assert "dance" in error and "jump" in error


def test_debug_shows_where_an_error_comes_from():
    with pytest.raises(ValueError, match="--episodes is 0"):
        main(["--debug", "demo", "--episodes", "0"])


@pytest.mark.parametrize(
    ("module", "absent"), [("cli", ("torch", "rclpy", "mujoco")), ("demo.run", ("torch", "mujoco"))]
)
def test_importing_it_loads_nothing_heavy(module, absent):
    code = f"import sys, vla_accel_ros.tools.{module}; print([m for m in {absent!r} if m in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert result.stdout.strip() == "[]", result.stderr
