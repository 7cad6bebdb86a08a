"""The ament_python package vla_accel_ros.

Version, description, licence and maintainer are read from package.xml, so that they stand in one place, and
extras from requirements/. install_requires has what `vla --help` needs, which apt has, too; the rest is in
extras, so that pip brings no second torch or numpy to a ROS 2 machine.
"""

import os
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from setuptools import find_packages, setup

NAME = "vla_accel_ros"
manifest = ElementTree.parse("package.xml").getroot()
maintainer = manifest.find("maintainer")


def field(tag: str) -> str:
    return (manifest.findtext(tag) or "").strip()


def files(folder: str) -> list[str]:
    """All files below a folder, sorted; setuptools older than 62.3 (Humble has 59.6) does not expand `**`."""
    return sorted(
        os.path.join(parent, name)
        for parent, _, names in os.walk(folder)
        for name in names
        if "__pycache__" not in parent
    )


def share(folder: str) -> list[tuple[str, list[str]]]:
    """data_files that lay a folder, sub-folders included, under share/vla_accel_ros."""
    by_parent: dict[str, list[str]] = {}
    for path in files(folder):
        by_parent.setdefault(os.path.join("share", NAME, os.path.dirname(path)), []).append(path)
    return sorted(by_parent.items())


def requirements(*names: str) -> list[str]:
    """The lines of files of requirements/ that name packages."""
    files = (Path("requirements", f"{name}.txt").read_text() for name in names)
    return [line for text in files for line in text.splitlines() if line and line[0] not in "#-"]


def refuse_without_messages() -> None:
    """End a colcon build that has not found vla_accel_msgs: colcon looks for no packages in a package, and
    every node would fail to start."""
    prefixes = os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep)
    there = (f"{prefix}/share/ament_index/resource_index/packages/vla_accel_msgs" for prefix in prefixes)
    builds = {"build", "develop"} & set(sys.argv[1:]) and "--help" not in sys.argv
    if builds and any(prefixes) and not any(map(os.path.exists, there)):
        here = os.path.abspath(".")
        sys.exit(
            "vla_accel_msgs is neither built nor sourced, and colcon does not find it in here. Build both:\n"
            f"  colcon build --base-paths {here} {here}/msg"
        )


refuse_without_messages()
setup(
    name=NAME,
    version=field("version"),
    description=field("description"),
    license=field("license"),
    maintainer=(maintainer.text or "") if maintainer is not None else "",
    maintainer_email=maintainer.get("email", "") if maintainer is not None else "",
    packages=find_packages(include=[NAME, f"{NAME}.*"]),
    package_data={
        NAME: ["py.typed"],
        f"{NAME}.kernels": [
            os.path.relpath(path, f"{NAME}/kernels")
            for folder in ("tuning", "cuda")
            for path in files(f"{NAME}/kernels/{folder}")
            if path.endswith((".json", ".cu", ".cuh"))
        ],
        f"{NAME}.planning": ["devices/*.yaml"],
        f"{NAME}.tools.look": ["page.html"],
        f"{NAME}.sim": [
            os.path.relpath(path, f"{NAME}/sim")
            for path in files(f"{NAME}/sim")
            if path.endswith(".xml") or path.startswith(f"{NAME}/sim/policy{os.sep}")
        ],
    },
    data_files=[
        ("share/ament_index/resource_index/packages", [f"resource/{NAME}"]),
        (f"share/{NAME}", ["package.xml"]),
        ("bin", ["scripts/vla"]),  # colcon puts bin/ on PATH; pip's own script takes its place there
        *share("launch"),
        *share("config"),
        # With these `vla demo` of an installed wheel builds vla_accel_msgs.
        *share("msg"),
        *share("scripts"),
        *share("requirements"),
    ],
    python_requires=">=3.10",
    install_requires=["setuptools", "numpy", "PyYAML", "rich"],
    extras_require={
        "engine": ["torch>=2.6", "safetensors>=0.4", "tokenizers>=0.19"],
        "demo": requirements("robot", "demo", "venv", "ros-jazzy"),
        "test": ["pytest"],
        "orbax": ["tensorstore"],
        "export": ["av", "pyarrow"],
        "trace": ["perfetto"],
        "serve": ["msgpack", "opencv-python-headless", "pillow", "websockets>=13"],
        "view": ["pin"],
        "fast": ["toppra>=0.6.10"],
        "fleet": ["ray"],
    },
    zip_safe=False,
    entry_points={
        "console_scripts": [
            f"inference = {NAME}.nodes.inference.node:main",
            f"fleet_inference = {NAME}.nodes.fleet_inference.node:main",
            f"openpi_inference = {NAME}.nodes.openpi_inference.node:main",
            f"trajectory = {NAME}.nodes.trajectory.node:main",
            f"sim_robot = {NAME}.nodes.sim_robot:main",
            f"camera = {NAME}.nodes.camera.node:main",
            f"recorder = {NAME}.nodes.recorder.node:main",
            f"fleet_scheduler = {NAME}.nodes.fleet.node:main",
            f"vla = {NAME}.tools.cli:main",
        ],
    },
)
