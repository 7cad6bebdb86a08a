"""Parameters are said once, can be checked without ROS, and refuse what makes no sense."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from builders import make_checkpoint, make_config
from calling import call
from rcl_interfaces.msg import ParameterType
from rcl_interfaces.srv import DescribeParameters, GetParameters
from running import ROOT

from vla_accel_ros.nodes.params.parameter import Parameter
from vla_accel_ros.nodes.params.parameter_file import parameter_of
from vla_accel_ros.nodes.params.tables import NODES
from vla_accel_ros.nodes.running.environment import additional_environment

TYPES = {
    bool: ParameterType.PARAMETER_BOOL,
    int: ParameterType.PARAMETER_INTEGER,
    float: ParameterType.PARAMETER_DOUBLE,
    str: ParameterType.PARAMETER_STRING,
}


@pytest.mark.parametrize("file", sorted((ROOT / "config").glob("*.yaml")), ids=lambda file: file.name)
def test_a_parameter_file_has_values_of_the_parameters_types(file: Path) -> None:
    """As YAML 1.1 reads them, in which off is a bool: ROS reads it so."""
    text = re.sub(r"^( +)#(\w+: )", r"\1\2", file.read_text(), flags=re.MULTILINE)  # those of an engine, too
    for name, section in yaml.safe_load(text).items():
        table = {parameter.name: parameter.default for parameter in NODES[name.rpartition("/")[2]]}
        for key, value in section["ros__parameters"].items():
            assert type(value) is type(table[key]), key


def test_tables_and_environment_import_without_ros():
    code = (
        "import sys; sys.modules['rclpy'] = None\n"
        "import vla_accel_ros.nodes.params.tables, vla_accel_ros.nodes.running.environment"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize("node", NODES)
def test_parameter_is_described_and_named_once(node):
    names = [parameter.name for parameter in NODES[node]]
    assert len(set(names)) == len(names)
    assert all(parameter.description.endswith((".", "].")) for parameter in NODES[node])


@pytest.mark.parametrize("node", ["sim_robot", "camera"])
def test_parameter_of_node_without_lifecycle_is_read_only_unless_live(node):
    assert {parameter.name for parameter in NODES[node] if parameter.read_only == parameter.live} == set()


@pytest.mark.parametrize(
    ("value", "expected"),
    [(11.0, "0.0 to 10.0"), (1, "float"), (float("nan"), "0.0 to 10.0"), ("1.0", "float")],
)
def test_value_is_refused_when_out_of_range_or_of_other_type(value, expected):
    with pytest.raises((TypeError, ValueError), match=expected):
        Parameter("x", 1.0, "A number.", 0.0, 10.0).check(value)


@pytest.mark.parametrize(
    ("text", "engine"),
    [
        ("/**: {ros__parameters: {engine: fleet}}", "fleet"),
        ("/**/inference: {ros__parameters: {engine: fleet}}", "fleet"),
        ("/*/inference: {ros__parameters: {engine: fleet}}", "fleet"),
        ("/left: {inference: {ros__parameters: {engine: fleet}}}", "fleet"),
        ("left/inference: {ros__parameters: {engine: fleet}}", "fleet"),
        ("/*: {ros__parameters: {engine: fleet}}", "local"),
        ("/right/inference: {ros__parameters: {engine: fleet}}", "local"),
        ("/**/trajectory: {ros__parameters: {engine: fleet}}", "local"),
        ("/**/inference: {ros__parameters: {model: fleet}}", "local"),
        ("/**: {ros__parameters: {engine: local}}\n/left/*: {ros__parameters: {engine: fleet}}", "fleet"),
        ("", "local"),
    ],
)
def test_parameter_file_is_read_as_node_reads_it(tmp_path, text, engine):
    path = tmp_path / "params.yaml"
    path.write_text(text)
    assert parameter_of(path, "/left/inference", "engine", "local") == engine


def test_parameter_file_is_refused_when_no_yaml_and_ignored_when_missing(tmp_path):
    assert parameter_of(tmp_path / "none.yaml", "/inference", "engine", "local") == "local"
    (tmp_path / "params.yaml").write_text("a: [")
    with pytest.raises(ValueError, match=r"params.yaml is not valid YAML"):
        parameter_of(tmp_path / "params.yaml", "/inference", "engine", "local")


def test_default_is_refused_when_no_choice():
    with pytest.raises(ValueError, match="give one of a, b"):
        Parameter("x", "c", "A word.", choices=("a", "b"))


@pytest.mark.parametrize("node", ["trajectory", "sim_robot"])
def test_node_declares_table_with_ranges_and_descriptions(start, operator, node):
    start(node)
    names = [parameter.name for parameter in NODES[node]]
    request = DescribeParameters.Request(names=names)
    answer = call(operator, DescribeParameters, f"{node}/describe_parameters", request)
    for parameter, descriptor in zip(NODES[node], answer.descriptors):
        assert (descriptor.name, descriptor.type) == (parameter.name, TYPES[type(parameter.default)])
        assert (descriptor.description, descriptor.read_only) == (parameter.description, parameter.read_only)
        ranges = descriptor.floating_point_range or descriptor.integer_range
        assert bool(ranges) == (parameter.minimum is not None)
        if ranges:
            assert ranges[0].from_value == parameter.minimum


def test_former_name_is_read_with_one_warning_and_options_are_logged(start, operator, tmp_path):
    model = str(make_checkpoint(tmp_path / "model", make_config("pi0")))
    node = start("inference", autostart=True, model=model, denoise_steps=2, goal="memory", kv_slots=6)
    node.wait_for_log("goal memory sets answers 1; set by you: slots 6, steps 2")
    assert node.log.count("'denoise_steps' is now called 'steps'") == 1
    assert "unknown" not in node.log
    answer = call(operator, GetParameters, "inference/get_parameters", GetParameters.Request(names=["steps"]))
    assert answer.values[0].integer_value == 2


def test_misspelt_parameter_is_logged_with_nearest_name(start):
    node = start("trajectory", watchdog_herz=20.0)
    node.wait_for_log("parameter 'watchdog_herz' is unknown to this node: did you mean 'watchdog_hz'?")


@pytest.mark.parametrize("library", ["libfastdds.so", "libfastrtps.so"])
def test_environment_adds_what_is_missing_and_keeps_users_choice(library, tmp_path):
    (tmp_path / library).touch()
    variable = f"{library[3:-3].upper()}_DEFAULT_PROFILES_FILE"
    libraries = {"LD_LIBRARY_PATH": f":{tmp_path}"}
    added = additional_environment(libraries)
    assert set(added) == {
        "MALLOC_MMAP_THRESHOLD_",
        "MALLOC_TRIM_THRESHOLD_",
        variable,
        "VLA_LAUNCHER",
    }
    assert added[variable].endswith("config/fastdds.xml")
    theirs = {**dict.fromkeys(added, "mine"), **libraries}
    assert additional_environment(theirs).keys() == {"VLA_LAUNCHER"}
