"""The commands that README.md and the guide print, and what is put in the place of their examples' names.

A command is a line of a fenced block without a language; a line that ends with a backslash goes on. What
follows `#` is its comment. Every command of the documents that are tried must be claimed by one of the tests,
or stand in NOT_RUN.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from vla_accel_ros.nodes.running.environment import process_environment

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
TRIED = (README, *(ROOT / "docs" / "guide" / f"{name}.md" for name in ("robot", "checkpoint", "record")))
"""Documents whose commands are run; those of others are parsed (test_docs.py)."""

PROGRAM = re.compile(r"(cd|colcon|make|pip|ros2|source|vla|python3?)\b")

# Not run by a test, and why.
NOT_RUN = {
    "make demo": "test/tools/test_demo.py runs its command, `vla demo`; make itself installs for minutes",
    "make fleet-demo": "test/tools/test_fleet_demo.py runs its command, `vla fleet-demo`",
    "vla fetch lerobot/pi05_base": "fetches from the network: test/tools/test_fetch.py",
    "vla contract make --from-robot --model PATH --map front=base_0_rgb "
    "wrist=left_wrist_0_rgb > robot.yaml": "test/nodes/test_contract_from_robot.py",
    "vla record": "test/nodes/recorder/test_marked_episodes.py",
    'vla record start --task "fold"': "the same",
    "vla record --report BAG": "test/tools/test_episodes.py",
    "vla inspect PATH --as pi05_libero": "needs a checkpoint of openpi: test/models/checkpoints",
    'vla convert PATH OUT --as "pi05_droid action_horizon=16"': "the same",
    "vla convert BASE OUT --adapter LORA": "needs an adapter: test/models/checkpoints",
    "vla inspect --verify OUT": "test/models/checkpoints/test_checkpoint.py",
    "vla compare PATH --peer lerobot --python ~/lerobot/.venv/bin/python": "needs the peer's environment",
    "vla compare PATH --peer openpi --python ~/openpi/.venv/bin/python --as pi05_libero": "the same",
    "vla compare PATH --peer transformers --python ~/openvla/.venv/bin/python --statistics bridge_orig": "",
    "cd ~/ws/src && git clone <this repository> vla_accel_ros": "fetches from the network",
    "python3 -m venv --system-site-packages ~/ws/venv && touch ~/ws/venv/COLCON_IGNORE": "for Ubuntu 24.04",
    "source ~/ws/venv/bin/activate": "the same",
    "pip install -r vla_accel_ros/requirements/robot.txt": "fetches from the network",
    "pip install -r src/vla_accel_ros/requirements/demo.txt": "the same",
    "cd ~/ws && rosdep install --from-paths src src/vla_accel_ros/msg --ignore-src -y": "changes the system",
    "python3 -m colcon build --base-paths src src/vla_accel_ros/msg": "test/test_package.py builds one",
    "source install/setup.bash": "test/test_package.py sources a workspace",
}


def commands(*documents: Path, languages: tuple[str, ...] = ("",)) -> list[str]:
    """Every command of documents (default: TRIED), once, without its comment, in the order of the files."""
    language: str | None = None
    block: list[str] = []
    for line in "\n".join(document.read_text() for document in documents or TRIED).splitlines():
        if line.strip().startswith("```"):
            language = line.strip()[3:] if language is None else None
        elif language in languages:
            block.append(line)
    lines = "\n".join(block).replace("\\\n", " ").splitlines()
    plain = [" ".join(re.sub(r"(^|\s+)#.*", "", line).split()) for line in lines]
    return list(dict.fromkeys(line for line in plain if PROGRAM.match(line)))


def starting_with(*words: str) -> list[str]:
    """The commands of the documents that are tried which begin so, and are run."""
    return [command for command in commands() if command.startswith(words) and command not in NOT_RUN]


def run(command: str, folder: Path, timeout_s: float = 240.0, **places: object) -> str:
    """What a command of README.md prints in that folder; fails unless it ends with status 0."""
    for name, place in places.items():
        command = command.replace(name, str(place))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = process_environment({"PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"})
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def inline() -> list[str]:
    """What stands between single backticks in the text, and looks like a command."""
    text = re.sub(r"^ *```.*?^ *```$", "", README.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", text) if " " in code or "/" in code]
