"""Limits come out of a URDF, and a file that is none is refused with its fix."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_accel_ros.contract import urdf

ROBOT = """\
<?xml version="1.0"?>
<robot name="two">
  <link name="base"/><link name="arm"/>
  <joint name="a" type="revolute"><limit lower="-1.5" upper="2" velocity="3" effort="9"/></joint>
  <joint name="b" type="continuous"><limit lower="0" upper="1" velocity="1.2" effort="1"/></joint>
  <joint name="c" type="prismatic"><limit upper="0.08" effort="1"/></joint>
  <joint name="d" type="revolute"/>
  <joint name="tool" type="fixed"/>
  <transmission name="t"><joint name="a"/></transmission>
</robot>
"""


@pytest.fixture
def read(tmp_path):
    def read(text: str, name: str = "robot.urdf") -> dict[str, urdf.UrdfJoint]:
        path = tmp_path / name
        path.write_text(text)
        return urdf.read(path)

    return read


def test_urdf_gives_moving_joints_and_their_limits(read):
    assert list(read(ROBOT).values()) == [
        urdf.UrdfJoint("a", "revolute", -1.5, 2.0, 3.0),
        urdf.UrdfJoint("b", "continuous", None, None, 1.2),
        urdf.UrdfJoint("c", "prismatic", 0.0, 0.08, None),
        urdf.UrdfJoint("d", "revolute", None, None, None),
    ]


@pytest.mark.parametrize(
    ("old", "new", "fact"),
    [
        ('upper="2"', 'upper="-2"', "lower = -1.5, not below upper = -2"),
        ('upper="2"', 'upper="2 rad"', "upper = '2 rad'"),
        ('upper="2"', 'upper="inf"', "upper = 'inf'"),
        ('velocity="3"', 'velocity="0"', "velocity = 0"),
    ],
)
def test_urdf_says_which_joint_has_limits_that_cannot_be_and_reads_the_others(read, tmp_path, old, new, fact):
    assert old in ROBOT
    joints = read(ROBOT.replace(old, new))
    assert joints["a"].problem.startswith(f"{tmp_path / 'robot.urdf'}: joint 'a' has {fact}")
    assert joints["b"] == urdf.UrdfJoint("b", "continuous", None, None, 1.2)


XACRO = '<xacro:include xmlns:xacro="http://www.ros.org/wiki/xacro"/>'
ENTITIES = '<!DOCTYPE r [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]>'


@pytest.mark.parametrize(
    ("old", "new", "fact"),
    [
        ('name="b"', 'name="a"', "joint 'a' occurs twice"),
        ('name="b" ', "", "a <joint> has no name"),
        ("</robot>", "", "not valid XML"),
        ("robot", "sdf", "begins with <sdf>, not <robot>"),
        ('<?xml version="1.0"?>', '<?xml version="1.0" encoding="klingon"?>', "not valid XML"),
        ("<link", f"{XACRO}<link", "run `xacro robot.urdf > robot.urdf`"),
        ("<robot", f"{ENTITIES}<robot", "DOCTYPE"),
    ],
)
def test_urdf_is_refused_when_it_is_none(read, tmp_path, old, new, fact):
    assert old in ROBOT
    with pytest.raises(ValueError) as refusal:
        read(ROBOT.replace(old, new))
    assert str(refusal.value).startswith(f"{tmp_path / 'robot.urdf'}: ") and fact in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_urdf_is_refused_when_it_is_xacro_by_name(read):
    with pytest.raises(ValueError, match=r"`xacro robot\.urdf\.xacro > robot\.urdf`"):
        read("not even XML", "robot.urdf.xacro")


def test_urdf_never_opens_a_file_outside(read, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    with pytest.raises(ValueError, match="DOCTYPE"):
        read(f'<!DOCTYPE robot [<!ENTITY s SYSTEM "{secret}">]><robot name="&s;"/>')


@given(st.integers(0, len(ROBOT)), st.text(max_size=5))
def test_urdf_refuses_any_damage_in_a_sentence(tmp_path_factory, at, junk):
    path = tmp_path_factory.getbasetemp() / "damaged.urdf"
    path.write_bytes((ROBOT[:at] + junk + ROBOT[at + len(junk) :]).encode("utf-8", "surrogatepass"))
    try:
        urdf.read(path)
    except ValueError as refusal:
        assert str(refusal).startswith(f"{path}: ")
