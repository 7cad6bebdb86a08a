"""The SROS2 policies name what the running nodes have: no more, and nothing is left out.

Fast DDS of the Python package index is built without its security plugins, so that no rule can be enforced
here; what can rot is compared with the live graph of real nodes instead.
"""

from __future__ import annotations

from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from builders import CALM, make_checkpoint, make_config
from rclpy.node import NodeNameNonExistentError
from stack import Stack, wait_for_recorder

from vla_accel_msgs.msg import FleetRobot
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.tools.cli import main
from vla_accel_ros.tools.security import LIFECYCLE_NODES, rights, scheduler_rights, security

ROOT = Path(__file__).resolve().parents[2]
VERBS = {"publish", "subscribe", "reply", "request", "execute"}
# Allowed, and there only sometimes: by a parameter, by another distribution, while a controller is asked.
SOMETIMES = {
    "publish": {"/clock", "camera/front/frame", "camera/wrist/frame", "~/transition_event", "loop_stats"}
    | {"instruction", "question", "subtask"}
    | {f"camera/{name}/image_raw/compressed" for name in ("front", "wrist")},
    "subscribe": {"/clock", "/parameter_events", "inputs", "language_output", "next_subtask", "subtask"},
    "reply": {"~/get_type_description", "~/autosteer"}
    | {f"{node}_asking/get_type_description" for node in LIFECYCLE_NODES},
    "request": {
        *(f"controller_manager/{name}" for name in ("list_controllers", "switch_controller")),
        *(
            f"{node}_controller/{name}"
            for node in ("arm", "gripper")
            for name in ("get_parameters", "list_parameters")
        ),
    },
}


def full(name: str, node: str, namespace: str) -> str:
    """The name in the graph."""
    if name.startswith("/"):
        return name
    return f"{namespace}/{node}/{name[2:]}" if name.startswith("~/") else f"{namespace}/{name}"


def live(operator: Operator, node: str, namespace: str) -> dict[str, set[str]]:
    """What a node and the nodes beside it in its process have in the graph."""
    here = operator.node
    get = {
        "publish": here.get_publisher_names_and_types_by_node,
        "subscribe": here.get_subscriber_names_and_types_by_node,
        "reply": here.get_service_names_and_types_by_node,
        "request": here.get_client_names_and_types_by_node,
    }
    names = {verb: {name for name, _ in ask(node, namespace or "/")} for verb, ask in get.items()}
    actions = {name.partition("/_action/")[0] for name in names["reply"] if "/_action/" in name}
    plain = {verb: {name for name in names[verb] if "/_action/" not in name} for verb in names}
    return {**plain, "execute": actions}


@pytest.mark.parametrize("namespace", [""])
def test_policies_name_what_running_nodes_have(start, tmp_path, operator: Operator, namespace: str) -> None:
    Stack(start, tmp_path, namespace)
    start("recorder", namespace, autostart=True, record_dir=str(tmp_path / "bags"))
    wait_for_recorder(operator)
    operator.wait(lambda: operator.measured, 180.0, "joint state")
    operator.instruct(operator.reset("reach", 1))
    operator.wait(lambda: operator.chunks and operator.motions, 180.0, "chunk, and word of motion")

    def wrong() -> list[str]:
        found = []
        for node, each in rights(operator.contract, sim=True).items():
            if node in ("operator", "controllers") or node.startswith("camera_"):
                continue
            there = live(operator, node, namespace)
            for verb in sorted(VERBS):
                allowed = {full(name, node, namespace) for name in getattr(each, verb)}
                sometimes = {full(name, node, namespace) for name in SOMETIMES.get(verb, ())}
                found += [f"{node} may not {verb} {name}" for name in sorted(there[verb] - allowed)]
                found += [f"{node} never {verb} {name}" for name in sorted(allowed - there[verb] - sometimes)]
        return found

    with suppress(TimeoutError):  # the recorder takes topics that come later a moment after they came
        operator.wait(lambda: not [one for one in wrong() if "may not" not in one], 90.0, "everything in use")
    left = wrong()
    assert not left, "\n".join(left)


def test_only_trajectory_may_command_and_only_inference_may_send_chunks() -> None:
    contract = Contract.load(demo_contract())
    every = rights(contract, sim=True)

    def publishers(topic: str) -> set[str]:
        return {node for node, each in every.items() if topic in each.publish}

    assert publishers("action_chunk") == {"inference"}
    for controller in contract.controllers:
        assert publishers(controller.topic) == {"trajectory"}
    assert publishers("instruction") == {"operator", "trajectory"}  # of a goal of run_policy
    held = {node for node, each in every.items() if "trajectory/resume" in each.request}
    assert held == {"operator"}


@pytest.mark.parametrize("robot", ["sim_arm", "ur5e_robotiq"])
def test_the_shipped_policies_are_those_of_their_contracts(robot: str, capsys, tmp_path) -> None:
    shipped = (ROOT / "config" / "security" / f"{robot}.policy.xml").read_text()
    file = ROOT / "config" / "contracts" / f"{robot}.yaml"
    arguments = ["security", "--contract", str(file), *(["--sim"] if robot == "sim_arm" else [])]
    assert main(arguments) == 0
    assert capsys.readouterr().out == shipped
    # The shape that sros2's schema has: enclaves, each with profiles of a node, each with lists that allow.
    root = ElementTree.fromstring(shipped)
    assert (root.tag, root.attrib) == ("policy", {"version": "0.2.0"})
    for enclave in root.findall("enclaves/enclave"):
        (profile,) = enclave.findall("profiles/profile")
        assert enclave.attrib["path"] == "/" + profile.attrib["node"] and profile.attrib["ns"] == "/"
        for allowed in profile:
            assert allowed.tag in ("topics", "services", "actions")
            assert list(allowed.attrib.values()) == ["ALLOW"] and len(allowed)
            assert {child.tag for child in allowed} == {allowed.tag[:-1]}


def test_enclaves_are_in_the_namespace_of_the_robot() -> None:
    root = ElementTree.fromstring(security(Contract.load(demo_contract()), "left/arm"))
    enclaves = {each.attrib["path"] for each in root.findall("enclaves/enclave")}
    assert {"/left/arm/inference", "/left/arm/trajectory", "/left/arm/operator"} <= enclaves
    assert {each.attrib["ns"] for each in root.iter("profile")} == {"/left/arm"}


def test_a_force_sensor_on_a_topic_is_heard_by_trajectory_and_recorder_and_tared_by_the_operator(tmp_path):
    fields = yaml.safe_load(Path(demo_contract()).read_text())
    limits = {"yields": 5, "stops": 9}
    fields["force"] = {
        "wrench": {
            "topic": "wrist/wrench",
            "rate_hz": 1000,
            "max_age_s": 0.1,
            "force_n": limits,
            "torque_nm": limits,
        }
    }
    path = tmp_path / "contract.yaml"
    path.write_text(yaml.safe_dump(fields))
    every = rights(Contract.load(path))
    heard_by = {node for node, each in every.items() if "wrist/wrench" in each.subscribe}
    assert heard_by == {"trajectory", "recorder"}
    assert "~/tare" in every["trajectory"].reply and "trajectory/tare" in every["operator"].request
    assert "trajectory_wrench/get_type_description" in every["trajectory"].reply
    plain = rights(Contract.load(demo_contract()))
    assert "~/tare" not in plain["trajectory"].reply


def test_a_base_is_sent_velocities_by_trajectory_and_its_odometry_is_heard_and_recorded(tmp_path):
    base: dict[str, object] = {"topic": "base/cmd_vel"}
    base |= {"message": "Twist", "odometry": "base/odom", "axes": {"x": 1.0}}
    base |= {"rate_hz": 20, "timeout_s": 0.5, "linear": 0.4, "angular": 1.0}
    base |= {"linear_acceleration": 0.8, "angular_acceleration": 2.0}
    path = tmp_path / "contract.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(demo_contract().read_text()) | {"base": base}))
    contract = Contract.load(path)
    nodes = rights(contract).items()
    for topic, sender, hearers in (
        ("base/cmd_vel", "trajectory", {"controllers", "recorder"}),
        ("base/odom", "controllers", {"inference", "operator", "recorder"}),
    ):
        assert {node for node, each in nodes if topic in each.publish} == {sender}
        assert {node for node, each in nodes if topic in each.subscribe} == hearers


@pytest.mark.parametrize("namespace", ["", "left/arm"])
def test_a_fleets_policy_has_an_enclave_for_its_scheduler_with_the_topics_of_robots(namespace: str) -> None:
    contract = Contract.load(demo_contract())
    text = security(contract, namespace, fleet=True)
    places = {place.attrib["path"]: place for place in ElementTree.fromstring(text).iter("enclave")}
    robot, scheduler = (
        places[path] for path in (f"/{namespace}/inference".replace("//", "/"), "/fleet_scheduler")
    )
    assert [profile.attrib for profile in scheduler.iter("profile")] == [
        {"ns": "/", "node": "fleet_scheduler"}
    ]

    def topics(place: ElementTree.Element, verb: str) -> set[str]:
        return {topic.text or "" for each in place.iter("topics") if verb in each.attrib for topic in each}

    def allows(verb: str, topic: str) -> bool:
        """As DDS permissions do: fnmatch, where * stands for slashes, too."""
        return any(fnmatchcase(topic, allowed) for allowed in topics(scheduler, verb))

    within = f"/{namespace}".rstrip("/")
    for verb, other in (("publish", "subscribe"), ("subscribe", "publish")):
        used = {f"{within}/{topic}" for topic in topics(robot, other) if topic.startswith("fleet/")}
        assert len(used) >= 3 and all(allows(verb, topic) for topic in used)
        for topic in ("action_chunk", "instruction", *(each.topic for each in contract.controllers)):
            assert not allows(verb, f"{within}/{topic}")
    assert "/fleet_scheduler" not in security(contract, namespace)


def test_the_schedulers_rights_are_what_the_running_scheduler_has(
    start, tmp_path, operator: Operator
) -> None:
    model = make_checkpoint(tmp_path / "model", make_config(horizon=32), reach=CALM)
    start("fleet", autostart=True, model=str(model), steps=2)
    topic = "/left/fleet/robot"
    robot = operator.node.create_publisher(FleetRobot, topic, qos.LATCHED)

    def there(verb: str) -> set[str]:
        with suppress(NodeNameNonExistentError):
            return live(operator, "fleet_scheduler", "")[verb]
        return set()

    operator.wait(
        lambda: topic in there("subscribe") and "/left/fleet/session" in there("publish"), 180.0, "robot"
    )
    for verb in sorted(VERBS):
        allowed = {full(name, "fleet_scheduler", "") for name in getattr(scheduler_rights(), verb)}
        assert not [name for name in there(verb) if not any(fnmatchcase(name, each) for each in allowed)]
    operator.node.destroy_publisher(robot)
