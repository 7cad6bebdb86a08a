"""The container files name what there is, and are clean for hadolint, where that is installed."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_package import EXECUTABLES

from vla_accel_ros.nodes.params.tables import NODES
from vla_accel_ros.tools.cli import command_line

ROOT = Path(__file__).resolve().parents[1]
DOCKER = ROOT / "docker"
SERVICES: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_runs_what_the_package_has(service: str) -> None:
    command = re.sub(r"\$\{(\w+)(:-([^}]*))?\}", lambda match: match[3] or "", SERVICES[service]["command"])
    program, *words = shlex.split(command)
    if program == "vla":
        assert command_line().parse_args(words).run
    elif words[0] == "launch":
        text = (ROOT / "launch" / words[2]).read_text()
        assert all(f'"{word.partition(":=")[0]}"' in text for word in words[3:])
    else:
        assert words[:2] == ["run", "vla_accel_ros"] and words[2] in EXECUTABLES
        names = {word.partition(":=")[0] for before, word in pairwise(words) if before == "-p"}
        assert names <= {parameter.name for parameter in NODES[words[2]]}


def test_services_share_network_and_memory_and_only_inference_has_the_gpu() -> None:
    assert SERVICES.keys() == {"camera", "inference", "trajectory", "look"}
    assert all(each["network_mode"] == each["ipc"] == "host" for each in SERVICES.values())
    assert [name for name, each in SERVICES.items() if "deploy" in each] == ["inference"]


@pytest.mark.parametrize("file", sorted(DOCKER.glob("*Dockerfile")), ids=lambda file: file.name)
def test_a_dockerfile_copies_what_there_is_and_is_clean(file: Path) -> None:
    text = file.read_text()
    sources = re.findall(r"^COPY (\S+) ", text, re.MULTILINE) + re.findall(r"-r (\S+\.txt)", text)
    assert sources and all((ROOT / source).exists() for source in sources)
    if hadolint := shutil.which("hadolint"):
        done = subprocess.run([hadolint, str(file)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_the_devcontainer_is_built_from_a_dockerfile_that_is_there() -> None:
    folder = ROOT / ".devcontainer"
    settings = json.loads((folder / "devcontainer.json").read_text())
    assert (folder / settings["build"]["dockerfile"]).is_file()
