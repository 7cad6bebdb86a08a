"""The files of config/viewers name what nodes really have, and `vla view` publishes what they draw."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from builders import make_checkpoint, make_config
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from std_msgs.msg import String
from visualization_msgs.msg import MarkerArray

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.interfaces import interface
from vla_accel_ros.nodes.recorder.topics import recorded
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.tools.security import rights

ROOT = Path(__file__).resolve().parents[2]
VIEWERS = ROOT / "config" / "viewers"
TYPES = {
    "Image": "sensor_msgs/msg/Image",
    "MarkerArray": "visualization_msgs/msg/MarkerArray",
    "RobotModel": "std_msgs/msg/String",
}
"""What RViz's displays subscribe to."""
LINKS = [f"link_{number}" for number in range(6)]


def description(joints: tuple[str, ...]) -> str:
    """A chain of the joints, each 0.1 m above the one before and turning about x."""
    links = "".join(f'<link name="{name}"/>' for name in ("base", *LINKS[: len(joints)]))
    chained = zip(joints, ("base", *LINKS), LINKS)
    return f"<robot name='chain'>{links}" + "".join(
        f'<joint name="{joint}" type="continuous"><parent link="{parent}"/><child link="{child}"/>'
        '<origin xyz="0 0 0.1"/><axis xyz="1 0 0"/></joint>'
        for joint, parent, child in chained
    ) + "</robot>"  # fmt: skip


def foxglove() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((VIEWERS / "foxglove.json").read_text())
    return found


def drawn() -> dict[str, str]:
    """The topics of both files and the type that they must have; "" for any."""
    topics: dict[str, str] = {}
    for panel, config in foxglove()["configById"].items():
        kind = panel.partition("!")[0]
        if kind == "Image":
            topics[config["imageMode"]["imageTopic"]] = TYPES["Image"]
        elif kind == "3D":
            topics |= dict.fromkeys(config["topics"], TYPES["MarkerArray"])
        elif kind == "Plot":
            topics |= {path["value"].split(".")[0].split("{")[0]: "" for path in config["paths"]}
        elif kind == "DiagnosticSummary":
            topics[config["topicToRender"]] = "diagnostic_msgs/msg/DiagnosticArray"
        elif kind == "RawMessages":
            topics[config["topicPath"]] = ""
        elif kind == "Publish":
            topics[config["topicName"]] = config["datatype"]
        else:
            assert kind == "CallService", panel
    for display in yaml.safe_load((VIEWERS / "robot.rviz").read_text())["Visualization Manager"]["Displays"]:
        topic = display.get("Topic") or display.get("Description Topic")
        if topic is not None:
            topics[topic["Value"]] = TYPES[display["Class"].rpartition("/")[2]]
    return topics


def panels(node: Any) -> Iterator[str]:
    """The panels that a layout shows."""
    if isinstance(node, str):
        yield node
    else:
        yield from (*panels(node["first"]), *panels(node["second"]))


def test_the_foxglove_layout_shows_every_panel_once() -> None:
    assert sorted(panels(foxglove()["layout"])) == sorted(foxglove()["configById"])


def test_viewers_draw_topics_that_a_robots_nodes_may_publish() -> None:
    """By the rights of nodes, which test_security.py compares with running ones, and the types of bags."""
    contract = Contract.load(demo_contract())
    every = rights(contract, sim=True)
    topics = {
        name.replace("~", node, 1).lstrip("/")
        for node, allowed in every.items()
        for name in allowed.publish | allowed.subscribe
    }
    types = {f"/{entry.topic.lstrip('/')}": entry.bag_type for entry in recorded(contract)}
    types |= {"/instruction": TYPES["RobotModel"]}  # also a text
    for topic, kind in drawn().items():
        assert topic.lstrip("/") in topics, topic
        assert kind in ("", types.get(topic, kind)), topic
    for panel, config in foxglove()["configById"].items():
        for path in config.get("paths", ()):
            topic, *fields = re.sub(r"\[\d+\]|\{[^}]*\}", "", path["value"]).split(".")
            kind = types.get(topic, "vla_accel_msgs/msg/Inputs")
            assert fields[0] in interface(kind, topic).get_fields_and_field_types(), path["value"]
        if panel.startswith("CallService"):
            assert config["serviceName"].lstrip("/") in every["operator"].request


def test_viewers_draw_what_a_running_robot_has(
    start: Callable[..., Any], operator: Operator, tmp_path: Path, ros_domain: int
) -> None:
    pytest.importorskip("pinocchio")
    start("sim_robot")
    start("trajectory", autostart=True)
    model = make_checkpoint(tmp_path / "model", make_config("pi0", horizon=8))
    start("inference", autostart=True, model=str(model), steps=2)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    joints = operator.contract.action_names
    publisher = operator.node.create_publisher(String, "robot_description", qos.LATCHED)
    publisher.publish(String(data=description(joints)))
    markers: list[MarkerArray] = []
    lines: dict[str, DiagnosticStatus] = {}

    def on_markers(message: MarkerArray) -> None:
        markers.append(message)
        operator.changed()

    def on_lines(message: DiagnosticArray) -> None:
        lines.update({line.name: line for line in message.status})
        operator.changed()

    operator.node.create_subscription(MarkerArray, "chunk_path", on_markers, qos.COMMAND)
    operator.node.create_subscription(DiagnosticArray, "/diagnostics", on_lines, qos.REPORT)
    command = [sys.executable, "-m", "vla_accel_ros.tools.cli", "view", "--metrics", str(port)]
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "ROS_DOMAIN_ID": str(ros_domain), "PYTHONPATH": paths}
    with subprocess.Popen(command, env=environment) as process:
        try:
            operator.instruct("reach the red block")
            operator.wait(lambda: markers, 120.0, "markers")
            operator.wait(lambda: queried() <= {*samples(port)}, 60.0, "the metrics of the dashboard")
            topics = dict(operator.node.get_topic_names_and_types())
            services = dict(operator.node.get_service_names_and_types())
        finally:
            process.terminate()
    for topic, kind in drawn().items():
        assert topic in topics and kind in ("", *topics[topic]), topic
    for panel, config in foxglove()["configById"].items():
        if panel.startswith("CallService"):
            assert services[config["serviceName"]] == ["std_srvs/srv/Trigger"]
        for path in config.get("paths", ()):
            topic, *fields = re.sub(r"\[\d+\]|\{[^}]*\}", "", path["value"]).split(".")
            message = interface(topics[topic][0], path["value"])
            assert fields[0] in message.get_fields_and_field_types(), path["value"]
    assert {marker.ns for marker in markers[-1].markers} == {LINKS[len(joints) - 1]}
    heights = np.array([point.z for marker in markers[-1].markers for point in marker.points])
    assert {marker.header.frame_id for marker in markers[-1].markers} == {"base"}
    assert len(heights) and np.abs(heights).max() <= 0.1 * len(joints) + 1e-9
    groups = yaml.safe_load((VIEWERS / "diagnostics.yaml").read_text())["analyzers"]["ros__parameters"]
    for name, line in lines.items():
        own = [group for group, found in groups.items() if matches(found, name)]
        assert len(own) == 1, f"{name} is in {own}"
        assert line.hardware_id == "sim_arm" or "not configured" in line.message or "sim_robot" in name


def matches(group: Any, name: str) -> bool:
    """Whether a group of the aggregator takes a line."""
    return isinstance(group, dict) and any(re.fullmatch(regex, name) for regex in group["regex"])


def queried() -> set[str]:
    """The metrics of Grafana's dashboard."""
    dashboard = json.loads((VIEWERS / "grafana.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return {name for expression in expressions for name in re.findall(r"\bvla_\w+", expression)}


def samples(port: int) -> set[str]:
    """The metrics that are served; none before that."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as response:
            return set(re.findall(r"^(vla_\w+)\{", response.read().decode(), re.MULTILINE))
    except OSError:
        return set()
