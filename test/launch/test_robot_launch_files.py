"""The launch files of robots start others' drivers with arguments that those declare, and our nodes with the
robot's contract.

The packages of others are stand-ins with the arguments of the published launch files.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import stand_in

from vla_accel_ros.nodes.running.environment import share_path

ROOT = Path(__file__).resolve().parents[2]
DRIVERS = {
    ("ur_robot_driver", "ur_control.launch.py"): (
        "ur_type robot_ip safety_limits controllers_file description_launchfile tf_prefix use_mock_hardware "
        "headless_mode initial_joint_controller activate_joint_controller launch_rviz launch_dashboard_client"
    ),
    ("ur_moveit_config", "ur_moveit.launch.py"): (
        "launch_rviz ur_type warehouse_sqlite_path launch_servo use_sim_time"
    ),
    ("franka_bringup", "franka.launch.py"): (
        "robot_type arm_prefix namespace robot_ip load_gripper use_fake_hardware fake_sensor_commands "
        "joint_state_rate load_franka_robot_state_broadcaster controllers_yaml"
    ),
    ("franka_fr3_moveit_config", "moveit.launch.py"): (
        "robot_ip namespace load_gripper ee_id use_fake_hardware fake_sensor_commands db"
    ),
    ("realsense2_camera", "rs_launch.py"): (
        "camera_name camera_namespace serial_no usb_port_id device_type config_file log_level enable_color "
        "enable_depth initial_reset"
    ),
}
"""(package, launch file) -> the arguments that it declares."""
DRIVER = """
from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

def generate_launch_description():
    arguments = {arguments!r}
    given = {{name: LaunchConfiguration(name) for name in arguments}}
    node = Node(package={package!r}, executable={file!r}, parameters=[given])
    return LaunchDescription([*(DeclareLaunchArgument(name, default_value="") for name in arguments), node])
"""
CONTRACTS = {
    "ur": "ur5e_robotiq",
    "franka": "franka",
    "so101": "so101",
    "so101_bimanual": "so101_bimanual",
    "aloha": "aloha",
}


def path(robot: str) -> Path:
    return share_path(f"launch/{robot}.launch.py")


def driver_file(folder: Path, package: str, file: str, arguments: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = DRIVER.format(arguments=arguments.split(), package=package, file=file)
    (folder / file).write_text(text)
    return folder / file


@pytest.fixture(autouse=True)
def launch(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in.install(monkeypatch)
    monkeypatch.delitem(sys.modules, "vla_accel_ros.nodes.running.robot_launch", raising=False)


@pytest.fixture
def drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_drivers(tmp_path, monkeypatch)


def install_drivers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a prefix with stand-ins of the drivers' packages."""
    for (package, file), arguments in DRIVERS.items():
        index = folder / "share" / "ament_index" / "resource_index" / "packages"
        index.mkdir(parents=True, exist_ok=True)
        (index / package).write_text("")
        driver_file(folder / "share" / package / "launch", package, file, arguments)
    monkeypatch.setenv("AMENT_PREFIX_PATH", str(folder))


def started(robot: str, **arguments: str) -> dict[str, dict[str, object]]:
    """What was given to each driver that is started, without what was not; our nodes are left out."""
    nodes = [node for node in stand_in.start(path(robot), **arguments) if node.package != "vla_accel_ros"]
    return {node.executable: {k: v for k, v in node.parameters.items() if v} for node in nodes}


@pytest.mark.parametrize("robot", CONTRACTS)
def test_robot_alone_gets_our_nodes_with_its_contract_and_model(robot: str) -> None:
    nodes = stand_in.start(path(robot), model="/model", mode="rtc")
    assert [node.name for node in nodes] == ["inference", "trajectory"]
    inference, trajectory = nodes
    contract = str(ROOT / "config" / "contracts" / f"{CONTRACTS[robot]}.yaml")
    assert inference.parameters["contract"] == trajectory.parameters["contract"] == contract
    assert inference.parameters["model"] == "/model" and trajectory.parameters["mode"] == "rtc"
    own = stand_in.start(path(robot), contract="/own.yaml", record="true")
    assert [node.name for node in own] == ["inference", "trajectory", "recorder"]
    assert {node.parameters["contract"] for node in own} == {"/own.yaml"}


@pytest.mark.parametrize("robot", CONTRACTS)
def test_robot_argument_is_described(robot: str) -> None:
    for argument in stand_in.declared(path(robot)).values():
        assert argument.description.endswith(".")


def test_ur_starts_its_driver_with_the_controller_of_the_contract(drivers: None) -> None:
    assert started("ur") == {}
    assert started("ur", robot_ip="10.0.0.2", ur_type="ur10e") == {
        "ur_control.launch.py": {
            "ur_type": "ur10e",
            "robot_ip": "10.0.0.2",
            "launch_rviz": "false",
            "initial_joint_controller": "scaled_joint_trajectory_controller",
        }
    }


def test_ur_starts_moveit_beside_a_driver_that_runs_and_says_how_it_gets_the_robot(drivers: None) -> None:
    assert started("ur", moveit="true") == {
        "ur_moveit.launch.py": {"ur_type": "ur5e", "launch_rviz": "false"}
    }
    both = started("ur", moveit="true", robot_ip="10.0.0.2")
    assert set(both) == {"ur_control.launch.py", "ur_moveit.launch.py"}
    lines = [e.msg for e in stand_in.everything(path("ur"), moveit="true") if isinstance(e, stand_in.LogInfo)]
    assert any("/trajectory/release" in line and "/trajectory/reclaim" in line for line in lines)
    assert not any(
        "release" in e.msg for e in stand_in.everything(path("ur")) if isinstance(e, stand_in.LogInfo)
    )


def test_franka_starts_its_driver_at_the_contracts_rate_and_its_controller(
    drivers: None, tmp_path: Path
) -> None:
    nodes = started("franka", robot_ip="10.0.0.2")
    assert nodes.keys() == {"franka.launch.py", "spawner"}
    assert nodes["franka.launch.py"] == {
        "robot_type": "fr3",
        "robot_ip": "10.0.0.2",
        "load_gripper": "false",
        "joint_state_rate": "100",
        "controllers_yaml": f"{tmp_path}/share/franka_fr3_moveit_config/config/fr3_ros_controllers.yaml",
    }


def test_franka_moveit_starts_the_driver_itself(drivers: None) -> None:
    nodes = started("franka", robot_ip="10.0.0.2", moveit="true")
    assert nodes == {"moveit.launch.py": {"robot_ip": "10.0.0.2", "load_gripper": "false"}}
    with pytest.raises(ValueError, match="robot_ip"):
        started("franka", moveit="true")


@pytest.mark.parametrize(("robot", "cameras"), [("ur", ("base", "wrist")), ("franka", ("exterior", "wrist"))])
def test_realsense_cameras_get_the_names_of_the_contract(
    robot: str, cameras: tuple[str, ...], drivers: None
) -> None:
    for name in cameras:
        nodes = started(robot, **{f"{name}_serial": "1234"})
        assert nodes == {
            "rs_launch.py": {
                "camera_namespace": "cameras",
                "camera_name": name,
                "serial_no": "_1234",
                "enable_depth": "false",
            }
        }


@pytest.mark.parametrize(
    ("robot", "cameras"),
    [("so101", ("top", "wrist")), ("so101_bimanual", ("top", "left_wrist", "right_wrist"))],
)
def test_so101_starts_a_camera_node_for_each_device_and_the_users_driver(
    robot: str, cameras: tuple[str, ...], tmp_path: Path
) -> None:
    driver = driver_file(tmp_path, "arms", "arms.launch.py", "namespace")
    devices = {name: f"/dev/video{number}" for number, name in enumerate(cameras)}
    nodes = stand_in.start(path(robot), driver=str(driver), namespace="desk", **devices)
    assert [node.name for node in nodes] == [
        "arms.launch.py",
        *(f"{name}_camera" for name in cameras),
        "inference",
        "trajectory",
    ]
    for node, name in zip(nodes[1:], cameras):
        assert (node.executable, node.namespace) == ("camera", "desk")
        assert node.parameters == {"camera": name, "source": devices[name]}
    assert nodes[-1].namespace == "desk"


def test_aloha_starts_the_users_driver_and_refuses_one_that_is_not_there(tmp_path: Path) -> None:
    driver = driver_file(tmp_path, "arms", "arms.launch.py", "")
    assert set(started("aloha", driver=str(driver))) == {"arms.launch.py"}
    with pytest.raises(ValueError, match="/no/driver"):
        started("aloha", driver="/no/driver")


@pytest.mark.parametrize(
    ("robot", "arguments", "package"),
    [
        ("ur", {"robot_ip": "10.0.0.2"}, "ur-robot-driver"),
        ("ur", {"wrist_serial": "1"}, "realsense2-camera"),
        ("franka", {"robot_ip": "10.0.0.2", "moveit": "true"}, "franka-fr3-moveit-config"),
    ],
)
def test_robot_driver_that_is_not_installed_is_named_with_its_package(
    robot: str, arguments: dict[str, str], package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROS_DISTRO", "jazzy")
    monkeypatch.setenv("AMENT_PREFIX_PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=f"sudo apt install ros-jazzy-{package}"):
        started(robot, **arguments)


def test_robot_moveit_refuses_words_that_are_no_bool() -> None:
    with pytest.raises(ValueError, match="moveit is 'rviz'"):
        started("ur", moveit="rviz")
