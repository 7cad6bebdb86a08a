"""`vla view`: numbers for Prometheus, paths by a URDF, and pages of which nobody is held up."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from math import cos, sin

import numpy as np
import pytest

from vla_accel_ros.contract.files.kinematics import Kinematics
from vla_accel_ros.tools.fleet.board import SILENT_S
from vla_accel_ros.tools.pages import serving
from vla_accel_ros.tools.view.metrics import CONTENT_TYPE, Metrics

JOINTS = ("lift", "shoulder", "elbow")
URDF = """<robot name="planar">
  <link name="base"/> <link name="column"/> <link name="upper"/> <link name="fore"/> <link name="tool"/>
  <joint name="lift" type="prismatic"> <parent link="base"/> <child link="column"/> <axis xyz="0 0 1"/>
    <limit lower="0" upper="1" velocity="1" effort="1"/> </joint>
  <joint name="shoulder" type="continuous"> <parent link="column"/> <child link="upper"/>
    <axis xyz="0 0 1"/> </joint>
  <joint name="elbow" type="revolute"> <parent link="upper"/> <child link="fore"/> <axis xyz="0 0 1"/>
    <origin xyz="0.5 0 0"/> <limit lower="-3" upper="3" velocity="1" effort="1"/> </joint>
  <joint name="flange" type="fixed"> <parent link="fore"/> <child link="tool"/>
    <origin xyz="0.3 0 0"/> </joint>
</robot>"""


@dataclass
class Pair:
    key: str
    value: str


@dataclass
class Said:
    name: str
    values: list[Pair]
    level: bytes = b"\x00"
    message: str = ""


def said(name: str, values: Mapping[str, object], level: int = 0) -> Said:
    return Said(name, [Pair(key, str(value)) for key, value in values.items()], bytes([level]))


def samples(text: str) -> dict[str, float]:
    """Every sample of a text, by its name and labels."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_numbers_have_the_units_of_openmetrics_and_say_whose_they_are() -> None:
    metrics = Metrics()
    stream = said("cell/arm/inference: stream front", {"rate [Hz]": 9.5, "age [ms]": "40", "kind": "raw"}, 1)
    metrics.hear([stream, said("trajectory: arm_controller/joint_trajectory", {"queued": 3})], 1.0)
    found = samples(metrics.text(1.5))
    front = 'robot="/cell/arm",node="inference",of="front"'
    assert found == {
        f"vla_stream_rate_hertz{{{front}}}": 9.5,
        f"vla_stream_age_seconds{{{front}}}": 0.04,
        f'vla_level{{{front},item="stream front"}}': 1.0,
        'vla_controller_queued{robot="/",node="trajectory",of="arm_controller/joint_trajectory"}': 3.0,
        'vla_level{robot="/",node="trajectory",of="arm_controller/joint_trajectory",'
        'item="arm_controller/joint_trajectory"}': 0.0,
    }


def test_a_silent_node_has_no_numbers_and_what_is_none_is_left_out() -> None:
    metrics = Metrics()
    metrics.hear(
        [said("inference: inference", {"age": "nan", "rate": "inf", "instruction": "3 blocks"})], 1.0
    )
    assert list(samples(metrics.text(1.0))) == [
        'vla_level{robot="/",node="inference",of="",item="inference"}'
    ]
    assert metrics.text(1.1 + SILENT_S) == "# EOF\n"


def test_the_text_is_openmetrics_by_prometheus_own_parser() -> None:
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    metrics = Metrics()
    names = ('force "left"\\', "stream front", "loop vision", "loop action")
    metrics.hear([said(f"inference: {name}", {"p99 [ms]": 5, "a b": -1e-9}) for name in names], 1.0)
    families = list(parser.text_string_to_metric_families(metrics.text(1.0)))
    assert {f.name for f in families} >= {"vla_force_p99_seconds", "vla_loop_a_b", "vla_level"}
    force = next(f for f in families if f.name == "vla_force_a_b").samples[0]
    assert (force.labels["of"], force.value) == ('"left"\\', -1e-9)


def test_documents_are_served_on_loopback_and_a_port_that_is_taken_is_named() -> None:
    count = iter(range(10))
    documents = {"/metrics": (CONTENT_TYPE, lambda _: f"{next(count)}\n")}
    with serving(documents, 0) as port:
        for number in range(2):  # made anew for each request
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as response:
                assert response.read() == f"{number}\n".encode()
                assert response.headers["Content-Type"].startswith(CONTENT_TYPE)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30)
        with pytest.raises(OSError, match=f"port {port}"), serving(documents, port):
            pass
    with pytest.raises(ValueError, match="70000"), serving(documents, 70_000):
        pass


def test_paths_are_those_of_the_urdf() -> None:
    pytest.importorskip("pinocchio")
    actions = np.array([[0.2, 0.3, -0.8], [0.4, 4.0, 1.1]])
    robot = Kinematics(URDF, JOINTS)
    assert (robot.frame, robot.tips) == ("base", ["tool"])
    (path,) = robot.paths(JOINTS, actions, {}).values()
    expected = [
        (0.5 * cos(a) + 0.3 * cos(a + b), 0.5 * sin(a) + 0.3 * sin(a + b), height) for height, a, b in actions
    ]
    np.testing.assert_allclose(path, expected, atol=1e-12)
    part = Kinematics(URDF, JOINTS[1:], ["fore"]).paths(JOINTS[1:], actions[:, 1:], {"lift": 0.7})
    np.testing.assert_allclose(part["fore"], [(0.5 * cos(a), 0.5 * sin(a), 0.7) for a in actions[:, 1]])


@pytest.mark.parametrize(
    ("text", "joints", "tips", "word"),
    [
        (URDF, ("wheel",), (), "wheel"),
        (URDF, JOINTS, ("hand",), "hand"),
        ("<robot", JOINTS, (), "not valid XML"),
        ("<!DOCTYPE robot [<!ENTITY a 'b'>]><robot/>", JOINTS, (), "DOCTYPE"),
    ],
)
def test_a_description_without_the_joints_or_links_is_refused(text, joints, tips, word) -> None:
    if text is URDF:
        pytest.importorskip("pinocchio")
    with pytest.raises(ValueError, match=word):
        Kinematics(text, joints, tips)
