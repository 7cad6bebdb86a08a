"""What the launch files start is in the package, and every argument they declare does something."""

from __future__ import annotations

import os
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import stand_in
import yaml

from vla_accel_ros.nodes.params.tables import NODES
from vla_accel_ros.nodes.running.environment import profile_variable, this_process
from vla_accel_ros.sim.tasks import Task

ROOT = Path(__file__).resolve().parents[2]
BRINGUP = ROOT / "launch" / "bringup.launch.py"
DEMO = ROOT / "launch" / "demo.launch.py"
CAMERA = ROOT / "launch" / "camera.launch.py"
FLEET = ROOT / "launch" / "fleet.launch.py"
PARAMETER_FILES = tuple(
    ROOT / "config" / name for name in ("params.yaml", "sim.yaml", "camera.yaml", "fleet.yaml")
)

# What every ROS 2 node has without declaring it.
EVERY_NODES = {"use_sim_time"}
# What the launch arguments are for, and the parameter files therefore leave out.
LAUNCH_ARGUMENTS = {"autostart", "contract", "model"}
OF_A_NODE = {parameter.name: parameter.default for table in NODES.values() for parameter in table}
OTHERS = {
    **{name: "3" for name, default in OF_A_NODE.items() if type(default) in (int, float)},
    "remappings": "joint_states:=/joint_states",
    "network": "subnet",
    "engine": "fleet",
}


@pytest.fixture(autouse=True)
def launch(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in.install(monkeypatch)
    for name in ("FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE", "ROS_DISTRO"):
        monkeypatch.delenv(name, raising=False)
    for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"):
        monkeypatch.delenv(name, raising=False)


def sections(path: Path, comments: bool = True) -> dict[str, dict[str, object]]:
    """Node -> its parameters in a parameter file; comments: with those that are commented out."""
    text, by_node = path.read_text(), {}
    if comments:
        text = re.sub(r"^    #(?=\w+: )", "    ", text, flags=re.MULTILINE)
    for pattern, content in yaml.safe_load(text).items():
        namespace, _, node = pattern.rpartition("/")
        assert namespace == "/**", f"{path.name}: {pattern} does not match the node in every namespace"
        assert list(content) == ["ros__parameters"], f"{path.name}: {pattern}"
        by_node[node] = content["ros__parameters"]
    return by_node


@pytest.mark.parametrize("path", [BRINGUP, DEMO, CAMERA, FLEET], ids=lambda path: path.name)
def test_node_is_executable_of_package_with_declared_parameters(path: Path) -> None:
    executables = set(re.findall(r'f"(\w+) = {NAME}\.', (ROOT / "setup.py").read_text()))
    arguments = {"source": "0"} if path == CAMERA else {"model": "/some/model"}
    for node in stand_in.start(path, **arguments):
        assert node.package == "vla_accel_ros"
        assert node.executable in executables
        assert node.parameters.keys() <= {parameter.name for parameter in NODES[node.name]} | EVERY_NODES
        assert node.remappings == ()  # topics stand in the contract
        assert all(file.is_file() for file in node.files)
        assert any(node.name in sections(file) for file in node.files)


def test_bringup_starts_lifecycle_nodes_and_demo_adds_robot() -> None:
    def started(path: Path) -> dict[str, type]:
        return {node.name: node.kind for node in stand_in.start(path)}

    lifecycle = {"inference": stand_in.LifecycleNode, "trajectory": stand_in.LifecycleNode}
    assert started(BRINGUP) == lifecycle
    assert started(DEMO) == {"sim_robot": stand_in.Node, **lifecycle}


@pytest.mark.parametrize("path", [BRINGUP, DEMO, CAMERA, FLEET], ids=lambda path: path.name)
def test_argument_is_described_and_changes_what_is_started(path: Path) -> None:
    recording = {} if path in (CAMERA, FLEET) else {"record": "true"}
    for name, argument in stand_in.declared(path).items():
        assert argument.description.endswith(".")
        other = "false" if argument.default_value == "true" else OTHERS.get(name, "true")
        context = recording if name == "record_dir" else {}
        unchanged = stand_in.everything(path, **context)
        assert stand_in.everything(path, **context, **{name: other}) != unchanged, f"{path.name}: {name}"


@pytest.mark.parametrize("path", [BRINGUP, DEMO, CAMERA, FLEET], ids=lambda path: path.name)
def test_nodes_share_namespace_and_log_level(path: Path) -> None:
    for node in stand_in.start(path, namespace="arm1", log_level="debug"):
        assert node.namespace == "arm1"
        assert node.ros_arguments == ("--log-level", "debug", "--enclave", f"/arm1/{node.name}")


def test_node_starts_itself_and_again_after_it_died() -> None:
    for node in stand_in.start(BRINGUP):
        assert node.parameters == {"autostart": True, "use_sim_time": False}
        assert node.respawn and node.respawn_delay > 0
    for node in stand_in.start(BRINGUP, autostart="false", respawn="false"):
        assert node.parameters["autostart"] is False
        assert not node.respawn


def test_remappings_reach_all_nodes() -> None:
    names = "joint_states:=/joint_states camera/front/image_raw:=/cam0/image_raw"
    for node in stand_in.start(BRINGUP, remappings=names, record="true"):
        assert node.remappings == (
            ("joint_states", "/joint_states"),
            ("camera/front/image_raw", "/cam0/image_raw"),
        )
    for remapping in ("joint_states=/joint_states", "a:=b:=c", ":=b"):
        with pytest.raises(ValueError, match=remapping):
            stand_in.start(BRINGUP, remappings=remapping)


def test_contract_and_model_override_parameter_file_as_text() -> None:
    inference, trajectory = stand_in.start(BRINGUP, contract="/etc/robot.yaml", model="7")
    assert inference.parameters["contract"] == trajectory.parameters["contract"] == "/etc/robot.yaml"
    assert inference.parameters["model"] == "7"
    assert "model" not in trajectory.parameters


def test_robot_of_fleet_starts_executable_without_engine(tmp_path) -> None:
    def executable(**arguments: str) -> str:
        inference, _ = stand_in.start(BRINGUP, **arguments)
        assert inference.name == "inference"
        return inference.executable

    path = tmp_path / "params.yaml"
    path.write_text("/**/inference: {ros__parameters: {engine: fleet}}\n")
    assert executable() == executable(engine="local") == "inference"
    assert executable(engine="fleet") == "fleet_inference"
    assert executable(params_file=str(path)) == "fleet_inference"
    assert executable(params_file=str(path), engine="local") == "inference"
    path.write_text("/left/inference: {ros__parameters: {engine: fleet}}\n")
    assert executable(params_file=str(path)) == "inference"
    assert executable(params_file=str(path), namespace="left") == "fleet_inference"
    with pytest.raises(ValueError, match=r"'engine' is 'remote': .*local, fleet"):
        executable(engine="remote")


@pytest.mark.parametrize("path", [BRINGUP, DEMO], ids=lambda path: path.name)
def test_mode_is_parameter_of_trajectory_alone(path: Path) -> None:
    nodes = {node.name: node for node in stand_in.start(path, mode="rtc")}
    assert nodes["trajectory"].parameters["mode"] == "rtc"
    assert not {"mode", "rtc"} & nodes["inference"].parameters.keys()
    assert {p.name: p.default for p in NODES["inference"]}["rtc"] == "auto"


def test_camera_arguments_override_parameter_file() -> None:
    (usual,) = stand_in.start(CAMERA)
    assert usual.name == usual.executable == "camera" and not usual.parameters
    (wrist,) = stand_in.start(
        CAMERA, name="wrist_camera", camera="wrist", source="2", camera_info="/wrist.yaml"
    )
    assert wrist.name == "wrist_camera" and wrist.respawn
    assert wrist.parameters == {"camera": "wrist", "source": "2", "camera_info": "/wrist.yaml"}


def test_scheduler_starts_itself_for_one_model() -> None:
    (usual,) = stand_in.start(FLEET)
    assert usual.name == usual.executable == "fleet_scheduler" and usual.kind is stand_in.LifecycleNode
    assert usual.parameters == {"autostart": True} and usual.respawn
    (fifo,) = stand_in.start(FLEET, model="7", policy="fifo", staggered="4", autostart="false")
    assert fifo.parameters == {"model": "7", "rule": "fifo", "staggered": 4, "autostart": False}


@pytest.mark.parametrize("path", [BRINGUP, DEMO], ids=lambda path: path.name)
def test_recorder_is_added_when_asked_for(path: Path) -> None:
    *driving, recorder = stand_in.start(path, record="true", record_dir="/bags")
    assert recorder.name == recorder.executable == "recorder" and recorder.respawn
    assert recorder.parameters["record_dir"] == "/bags" and recorder.parameters["autostart"] is True
    assert recorder.parameters["contract"] == driving[-1].parameters["contract"] if path == DEMO else True
    assert driving == stand_in.start(path)


@pytest.mark.parametrize("path", [BRINGUP, DEMO], ids=lambda path: path.name)
def test_record_refuses_words_that_are_no_bool(path: Path) -> None:
    for word in ("true", "True", "yes", "on", "1"):
        assert stand_in.start(path, record=word)[-1].name == "recorder"
    for word in ("false", "no", "off", "0"):
        assert stand_in.start(path, record=word) == stand_in.start(path)
    for word in ("", "bags", "y"):
        with pytest.raises(ValueError, match=f"record is '{word}': give true or false"):
            stand_in.start(path, record=word)


def test_state_survives_restarts_but_not_from_demo_to_demo() -> None:
    assert all("XDG_STATE_HOME" not in node.environment for node in stand_in.start(BRINGUP))
    for node in stand_in.start(BRINGUP, state_dir="/state"):
        assert node.environment["XDG_STATE_HOME"] == "/state"
    robot, *driving = stand_in.start(DEMO)
    (folder,) = {node.environment["XDG_STATE_HOME"] for node in driving}
    assert Path(folder).stat().st_mode & 0o777 == 0o700 and "XDG_STATE_HOME" not in robot.environment


REACH = ("ROS_AUTOMATIC_DISCOVERY_RANGE", "ROS_LOCALHOST_ONLY")


def reach(path: Path, **arguments: str) -> set[tuple[str | None, ...]]:
    """How far everything that is started says it can be found."""
    started = stand_in.everything(path, **arguments)
    environments = [entity.environment for entity in started if isinstance(entity, stand_in.Started)]
    environments += [
        entity.additional_env for entity in started if isinstance(entity, stand_in.ExecuteProcess)
    ]
    return {tuple(environment.get(name) for name in REACH) for environment in environments}


def log_lines(path: Path, **arguments: str) -> list[str]:
    return [
        entity.msg
        for entity in stand_in.everything(path, **arguments)
        if isinstance(entity, stand_in.LogInfo)
    ]


def test_network_is_this_machine_in_demo_and_as_in_shell_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*REACH, "ROS_SECURITY_ENABLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ROS_DOMAIN_ID", "7")
    assert reach(DEMO) == {("LOCALHOST", None)}
    assert reach(DEMO, network="subnet") == {("SUBNET", None)}
    anyone = "(subnet): anyone, without a key may command these nodes"
    for path in (BRINGUP, CAMERA):
        assert reach(path) == {(None, None)}
        assert reach(path, network="localhost") == {("LOCALHOST", None)}
        assert log_lines(path) == [f"network: ROS domain 7 on this machine and its network {anyone}"]
    (line,) = log_lines(DEMO, instruction="reach the red block")
    assert "domain 7 on this machine only (localhost): anyone" in line
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    assert "on this machine only (localhost)" in log_lines(BRINGUP)[0]
    monkeypatch.setenv("ROS_LOCALHOST_ONLY", "1")
    assert reach(BRINGUP, network="subnet") == {("SUBNET", "0")}
    monkeypatch.setenv("ROS_SECURITY_ENABLE", "true")
    assert "anyone (ROS_SECURITY_STRATEGY is not Enforce) may" in log_lines(BRINGUP)[0]
    monkeypatch.setenv("ROS_SECURITY_STRATEGY", "Enforce")
    assert "holders of a keystore key may command" in log_lines(BRINGUP)[0]


def test_network_of_humble_is_its_own_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROS_DISTRO", "humble")
    assert reach(DEMO) == {(None, "1")}
    assert reach(BRINGUP, network="subnet") == {(None, "0")}
    with pytest.raises(ValueError, match=r"'world': .*localhost .*subnet"):
        stand_in.start(BRINGUP, network="world")


def test_demo_gives_instruction_and_prints_next_commands() -> None:
    started = stand_in.everything(DEMO, namespace="arm1")
    (say,) = [entity for entity in started if isinstance(entity, stand_in.ExecuteProcess)]
    subcommand, words, *options = say.cmd[3:]
    assert (subcommand, Task.parse(words).family) == ("say", "reach") and "--namespace=arm1" in options
    (handler,) = [entity for entity in started if isinstance(entity, stand_in.RegisterEventHandler)]
    (hint,) = handler.event_handler.on_exit
    assert handler.event_handler.target_action == say
    assert 'vla say "put the red block on the yellow pad" --namespace arm1' in hint.msg
    assert "ros2 service call /arm1/trajectory/hold std_srvs/srv/Trigger" in hint.msg
    silent = stand_in.everything(DEMO, instruction="")
    assert not [entity for entity in silent if isinstance(entity, stand_in.ExecuteProcess)]
    assert 'vla say "' in log_lines(DEMO, instruction="")[-1]


def test_demo_runs_contract_of_simulated_arm() -> None:
    _, *driving = stand_in.start(DEMO)
    for node in driving:
        assert node.parameters["contract"] == str(ROOT / "config" / "contracts" / "sim_arm.yaml")


@pytest.mark.parametrize("path", [BRINGUP, DEMO, CAMERA, FLEET], ids=lambda path: path.name)
@pytest.mark.parametrize(
    ("library", "variable"), [("libfastrtps.so", "FASTRTPS"), ("libfastdds.so", "FASTDDS")]
)
def test_allocator_and_fast_dds_are_set_for_images(
    path: Path, library: str, variable: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / library).touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    for node in stand_in.start(path):
        for name in ("XDG_STATE_HOME", *REACH):
            node.environment.pop(name, None)
        assert node.environment == {
            "MALLOC_MMAP_THRESHOLD_": str(64 * 1024**2),
            "MALLOC_TRIM_THRESHOLD_": str(256 * 1024**2),
            f"{variable}_DEFAULT_PROFILES_FILE": str(ROOT / "config" / "fastdds.xml"),
            "VLA_LAUNCHER": this_process(),
        }


def test_fast_dds_profile_of_user_stays_and_argument_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    variable = profile_variable(os.environ)
    monkeypatch.setenv(variable, "/theirs.xml")
    nodes = stand_in.start(BRINGUP, fastdds_profile="/mine.xml")
    assert all(node.environment[variable] == "/mine.xml" for node in nodes)
    for node in stand_in.start(BRINGUP):
        assert variable not in node.environment


def test_shared_memory_segment_holds_frames_of_two_hd_cameras() -> None:
    tree = ElementTree.parse(ROOT / "config" / "fastdds.xml")
    (segment,) = (node for node in tree.iter() if node.tag.endswith("segment_size"))
    hd = 1280 * 720 * 3
    assert 2 * 2 * hd <= int(segment.text or 0) <= 64 * 1024**2 // 5  # five processes in a container's 64 MB


def test_parameter_files_have_defaults_and_engine_options_as_comments() -> None:
    written = {node: table for path in PARAMETER_FILES for node, table in sections(path).items()}
    uncommented = {
        node: table for path in PARAMETER_FILES for node, table in sections(path, comments=False).items()
    }
    assert written.keys() == NODES.keys()
    for node, table in NODES.items():
        defaults = {entity.name: entity.default for entity in table if entity.name not in LAUNCH_ARGUMENTS}
        assert written[node] == defaults
        assert [type(value) for value in written[node].values()] == list(map(type, defaults.values()))
        assert uncommented[node].keys() == defaults.keys() - {
            entity.name for entity in table if entity.by_goal
        }
