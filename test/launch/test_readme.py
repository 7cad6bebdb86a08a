"""Every command of README.md and of the guide's tried pages does what it says, as it is printed.

PATH becomes the bundled policy, OUT and robot.yaml lie in a folder of the test. `ros2 launch` is read by the
stand-in here, and run where there is a ros2 (test_ros2_launch.py). What needs a robot is in
test/nodes/test_readme_robot.py.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
import stand_in
from readme_commands import NOT_RUN, ROOT, commands, inline, run, starting_with
from test_robot_launch_files import install_drivers

from vla_accel_ros.nodes.running.environment import demo_model, share_path
from vla_accel_ros.tools.cli import main


def test_every_command_is_run_or_has_a_reason() -> None:
    printed = commands()
    assert set(NOT_RUN) <= set(printed)
    run_here = starting_with(
        "vla inspect", "vla convert", "vla contract", "vla say", "vla ask", "vla replay", "vla export"
    )
    run_here += starting_with("ros2 launch", "ros2 service call")
    unclaimed = [command for command in printed if command not in {*NOT_RUN, *run_here}]
    assert not unclaimed, f"no test runs {unclaimed}"
    assert len(run_here) >= 15


@pytest.mark.parametrize("command", starting_with("ros2 launch"))
def test_what_is_launched_is_declared(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in.install(monkeypatch)
    monkeypatch.delitem(sys.modules, "vla_accel_ros.nodes.running.robot_launch", raising=False)
    install_drivers(tmp_path, monkeypatch)
    _, _, package, file, *arguments = shlex.split(command)
    assert package == "vla_accel_ros"
    given = dict(argument.split(":=", 1) for argument in arguments)
    assert stand_in.start(share_path(f"launch/{file}"), **given)


def test_a_checkpoint_is_looked_at_and_converted(tmp_path: Path) -> None:
    for command in starting_with("vla inspect", "vla convert"):
        run(command, tmp_path, PATH=demo_model(), OUT=tmp_path / "converted")
    assert (tmp_path / "converted" / "model.safetensors").exists()


def test_a_contract_is_made_completed_and_checked(tmp_path: Path) -> None:
    make, check = starting_with("vla contract")
    make = make.replace("--from-robot", "--urdf FILE")  # from a robot: test_contract_from_robot.py
    limits = '<limit lower="-3" upper="3" velocity="2"/>'
    joints = "".join(f'<joint name="j{i}" type="revolute">{limits}</joint>' for i in range(6))
    (tmp_path / "arm.urdf").write_text(f'<robot name="arm">{joints}</robot>')
    run(make, tmp_path, PATH=demo_model(), FILE="arm.urdf")
    file = tmp_path / "robot.yaml"
    own = {"acceleration": "5.0", "actions": "joints", "action": "delta", "step_dt_s": "0.0333"}
    file.write_text(re.sub(r"(\w+): \?\?\?", lambda key: f"{key[1]}: {own[key[1]]}", file.read_text()))
    assert "error" not in run(check, tmp_path, PATH=demo_model())


def test_commands_in_the_text_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    found = 0
    for code in inline():
        program, *words = [word for word in code.split() if not re.match(r"[A-Z_]+=", word)] or [""]
        if program == "make":
            assert words[0] in targets, code
        elif program == "vla" and words and not words[0].startswith("-"):
            with pytest.raises(SystemExit, match="0"):
                main([words[0], "--help"])
        elif program == "python":
            assert (ROOT / words[0]).is_file(), code
        else:
            continue
        found += 1
    assert found >= 3
