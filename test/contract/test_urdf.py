"""Limits come out of a URDF, and a file that is none is refused with its mend."""

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


def test_moving_joints_and_what_the_file_says_of_them(read):
    assert list(read(ROBOT).values()) == [
        urdf.UrdfJoint("a", "revolute", -1.5, 2.0, 3.0),
        urdf.UrdfJoint("b", "continuous", None, None, 1.2),
        urdf.UrdfJoint("c", "prismatic", 0.0, 0.08, None),
        urdf.UrdfJoint("d", "revolute", None, None, None),
    ]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('upper="2"', 'upper="-2"', "joint 'a' has lower = -1.5, not below upper = -2: mend them"),
        ('upper="2"', 'upper="2 rad"', "joint 'a' has upper = '2 rad', not a finite number: mend it"),
        ('upper="2"', 'upper="inf"', "joint 'a' has upper = 'inf', not a finite number: mend it"),
        ('velocity="3"', 'velocity="0"', "joint 'a' has velocity = 0, so it may not move: raise it"),
    ],
)
def test_a_joint_with_limits_that_cannot_be_says_so_and_the_others_are_read(
    read, tmp_path, old, new, sentence
):
    assert old in ROBOT
    joints = read(ROBOT.replace(old, new))
    assert joints["a"].problem == f"{tmp_path / 'robot.urdf'}: {sentence}"
    assert joints["b"] == urdf.UrdfJoint("b", "continuous", None, None, 1.2)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('name="b"', 'name="a"', "joint 'a' occurs twice: name every joint once"),
        ('name="b" ', "", "a <joint> has no name: add it"),
        ("</robot>", "", "not valid XML, mend it here: "),
        ("robot", "sdf", "begins with <sdf>, not <robot>: give a URDF file"),
        (
            '<?xml version="1.0"?>',
            '<?xml version="1.0" encoding="klingon"?>',
            "not valid XML, mend it here: ",
        ),
        (
            "<link",
            '<xacro:include xmlns:xacro="http://www.ros.org/wiki/xacro"/><link',
            "is xacro, not URDF: run `xacro robot.urdf > robot.urdf` and give that file",
        ),
        (
            "<robot",
            '<!DOCTYPE r [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><robot',
            "has a DOCTYPE, which no URDF needs: remove it",
        ),
    ],
)
def test_what_is_no_urdf_is_refused(read, tmp_path, old, new, sentence):
    assert old in ROBOT
    with pytest.raises(ValueError) as refusal:
        read(ROBOT.replace(old, new))
    assert str(refusal.value).startswith(f"{tmp_path / 'robot.urdf'}: ")
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_xacro_file_is_refused_by_its_name(read):
    with pytest.raises(ValueError, match=r"run `xacro robot\.urdf\.xacro > robot\.urdf` and give that file"):
        read("not even XML", "robot.urdf.xacro")


def test_a_file_outside_is_never_opened(read, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    with pytest.raises(ValueError, match="has a DOCTYPE"):
        read(f'<!DOCTYPE robot [<!ENTITY s SYSTEM "{secret}">]><robot name="&s;"/>')


@given(st.integers(0, len(ROBOT)), st.text(max_size=5))
def test_no_damage_does_more_than_a_sentence(tmp_path_factory, at, junk):
    path = tmp_path_factory.getbasetemp() / "damaged.urdf"
    path.write_bytes((ROBOT[:at] + junk + ROBOT[at + len(junk) :]).encode("utf-8", "surrogatepass"))
    try:
        urdf.read(path)
    except ValueError as refusal:
        assert str(refusal).startswith(f"{path}: ")
