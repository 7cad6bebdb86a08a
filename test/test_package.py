"""The package is what its manifests say, and plain colcon builds and installs it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from xml.etree import ElementTree

import pytest
from colcon_build import built, colcon, says_how_it_is_used

ROOT = Path(__file__).resolve().parents[1]
MANIFEST = ElementTree.parse(ROOT / "package.xml").getroot()
MESSAGES = ElementTree.parse(ROOT / "msg" / "package.xml").getroot()
EXECUTABLES = {
    "inference",
    "fleet_inference",
    "openpi_inference",
    "fleet_scheduler",
    "trajectory",
    "sim_robot",
    "camera",
    "recorder",
    "vla",
}

# Import name -> its rosdep key, where that is another; the rest is in requirements/robot.txt by its own name.
KEYS = {
    "PIL": "python3-pil",
    "cv2": "python3-opencv",
    "matplotlib": "python3-matplotlib",
    "mcap_ros2": "mcap-ros2-support",
    "numpy": "python3-numpy",
    "rich": "python3-rich",
    "tqdm": "python3-tqdm",
    "yaml": "python3-yaml",
}
# Imported only where a checkpoint, a GPU or a tool asks for it, with a sentence when it is not there.
ON_DEMAND = {
    "huggingface_hub",
    "msgpack",
    "ray",
    "cuda",
    "pynvml",
    "scipy",
    "sentencepiece",
    "tensorstore",
    "toppra",
    "transformers",
    "triton",
    "websockets",
}
BROUGHT_BY_MCAP = {"lz4", "zstandard"}
OF_PEERS = {"PIL", "jax", "lerobot", "openpi"}
"""What tools/compare/peer.py imports, in the environment of the public code."""


def requirements(name: str) -> dict[str, str]:
    """Package -> the rest of its line, of a requirements file."""
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    matches = (re.match(r"([A-Za-z][\w.-]*)(\[.*?\])?(.*)", line) for line in lines)
    return {match[1].lower(): match[3] for match in matches if match}


def depends(manifest: ElementTree.Element) -> set[str]:
    return {element.text or "" for element in manifest if element.tag.endswith("depend")}


def test_both_packages_and_the_installed_one_agree() -> None:
    installed = distribution("vla_accel_ros").metadata
    (maintainer,) = MANIFEST.iter("maintainer")
    assert MANIFEST.findtext("version") == MESSAGES.findtext("version")  # the wheel's: test_wheel.py
    assert (
        installed["License"] == MANIFEST.findtext("license") == MESSAGES.findtext("license") == "Apache-2.0"
    )
    assert installed["Maintainer"] == maintainer.text == MESSAGES.findtext("maintainer")
    assert (
        installed["Maintainer-email"] == maintainer.get("email") == MESSAGES.find("maintainer").get("email")
    )
    assert "Apache License" in (ROOT / "LICENSE").read_text()


def test_the_changelog_has_the_version() -> None:
    assert f"## [{MANIFEST.findtext('version')}]" in (ROOT / "CHANGELOG.md").read_text()


def test_every_entry_point_resolves() -> None:
    entries = {entry.name: entry for entry in distribution("vla_accel_ros").entry_points}
    assert entries.keys() == EXECUTABLES
    for entry in entries.values():
        assert callable(entry.load())


def test_every_import_is_declared() -> None:
    imported = set()
    for path in (ROOT / "vla_accel_ros").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                imported.add(node.module.partition(".")[0])
    foreign = (
        imported - set(sys.stdlib_module_names) - {"vla_accel_ros"} - ON_DEMAND - BROUGHT_BY_MCAP - OF_PEERS
    )
    declared = depends(MANIFEST) | requirements("robot.txt").keys() | requirements("demo.txt").keys()
    assert {name for name in foreign if KEYS.get(name, name) not in declared} == set()


def test_every_declared_dependency_is_used() -> None:
    """By its import, by its name in a program's text, or as what another one loads."""
    folders = [ROOT / name for name in ("vla_accel_ros", "launch", "test", "msg")]
    files = [
        path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".msg", ".srv")
    ]
    text = "\n".join(path.read_text() for path in files)
    modules = {key: name for name, key in KEYS.items()}
    loaded = {"ros2launch", "rosbag2_storage_mcap"}  # by the command ros2, and by rosbag2_py
    pytest_own = {"python3-pytest", "python3-pytest-timeout", "python3-hypothesis"}
    for name in depends(MANIFEST) - loaded - pytest_own:
        module = modules.get(name, name)
        assert re.search(rf"\b{module}\b[./ ]", text), f"package.xml declares {name}, which nothing uses"
        if f"<test_depend>{name}<" not in (ROOT / "package.xml").read_text():
            shipped = "\n".join(path.read_text() for path in files if path.is_relative_to(folders[0]))
            launched = "\n".join(path.read_text() for path in files if path.is_relative_to(folders[1]))
            pattern = rf"(import|from) {module}\b|{module}/|import_module\(\"{module}"
            assert re.search(pattern, shipped + launched), f"{name} is used by tests alone: test_depend"


def test_versions_are_pinned_in_one_place() -> None:
    pinned = requirements("constraints.txt")
    assert all(version.startswith("==") for version in pinned.values())
    for name in ("venv.txt", "test.txt", "robot.txt", "demo.txt"):
        assert all("==" not in version for version in requirements(name).values()), name
    assert requirements("robot.txt")["torch"] == ">=2.6"
    for distro in ("kilted", "jazzy"):  # pip takes a mixture of two without a word
        assert all("==" in version for version in requirements(f"ros-{distro}.txt").values()), distro


def test_every_message_is_generated_and_every_field_is_commented() -> None:
    cmake = (ROOT / "msg" / "CMakeLists.txt").read_text()
    messages = [
        *(ROOT / "msg").glob("*.msg"),
        *(ROOT / "msg").glob("*/*.srv"),
        *(ROOT / "msg").glob("*/*.action"),
    ]
    for path in messages:
        assert f"{path.parent.name}/{path.name}" in cmake
        above = "---"
        for line in path.read_text().splitlines():
            if line and line != "---" and not line.startswith("#"):
                assert above.startswith("#"), f"{path.name}: {line} has no comment above it"
            above = line


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, built and installed by colcon the way a user's workspace is, on top of the messages, which
    `make` has built by colcon."""
    return built(tmp_path_factory.mktemp("workspace"))


def test_colcon_installs_what_ros2_run_and_launch_look_for(workspace: Path) -> None:
    package = workspace / "install" / "vla_accel_ros"
    assert {path.name for path in (package / "lib" / "vla_accel_ros").iterdir()} == EXECUTABLES
    share = package / "share" / "vla_accel_ros"
    for folder in ("launch", "config"):
        for path in (ROOT / folder).rglob("*.*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert (share / path.relative_to(ROOT)).read_bytes() == path.read_bytes()
    assert (share / "package.xml").is_file()
    assert (package / "share/ament_index/resource_index/packages/vla_accel_ros").is_file()
    sim = next(package.glob("lib/python*/site-packages/vla_accel_ros/sim"))
    assert (sim.parent / "py.typed").is_file()
    expected = [ROOT / "vla_accel_ros/sim/scene.xml", *(ROOT / "vla_accel_ros/sim/policy").rglob("*")]
    for path in expected:
        assert (sim / path.relative_to(ROOT / "vla_accel_ros/sim")).exists(), path


def test_the_installed_package_runs_from_the_workspace(workspace: Path) -> None:
    """Sourced like a user's: modules and data files come from the workspace."""
    program = (
        "import vla_accel_msgs.msg, vla_accel_ros.nodes.params.tables\n"
        "from vla_accel_ros.nodes.running.environment import demo_contract\n"
        "from vla_accel_ros.contract.contract import Contract\n"
        "Contract.load(demo_contract())\n"
        "print(vla_accel_ros.__file__, demo_contract(), sep='\\n')"
    )
    shell = f'source install/setup.bash && exec "{sys.executable}" -c "$PROGRAM"'
    environment = {**os.environ, "PROGRAM": program}
    run = subprocess.run(
        ["bash", "-c", shell], cwd=workspace, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert len(lines) == 2 and all(Path(line).is_relative_to(workspace / "install") for line in lines), lines


def test_vla_is_a_command_once_the_workspace_is_sourced(workspace: Path) -> None:
    says_how_it_is_used(workspace)


def test_it_is_so_when_files_are_linked_too(tmp_path: Path) -> None:
    says_how_it_is_used(built(tmp_path, "--symlink-install"))


def test_a_build_without_the_messages_is_refused_with_the_line_that_builds_both(tmp_path: Path) -> None:
    (tmp_path / "ros").mkdir()
    done = colcon(tmp_path, str(tmp_path / "ros"), "build", "--base-paths", str(ROOT))
    assert done.returncode != 0 and "vla_accel_msgs" in done.stderr, done.stdout + done.stderr
    line = re.search(r"^ *colcon (build --base-paths .*)$", done.stderr, re.MULTILINE)
    assert line is not None, done.stderr
    manifests = [Path(folder) / "package.xml" for folder in line[1].split()[2:]]
    names = {ElementTree.parse(manifest).getroot().findtext("name") for manifest in manifests}
    assert names == {"vla_accel_msgs", "vla_accel_ros"}
