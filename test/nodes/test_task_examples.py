"""examples/: a tree, a program and MoveIt before and after a task, as far as they run without their peers."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any, ClassVar
from xml.etree import ElementTree

import pytest

from vla_accel_msgs.action import RunPolicy
from vla_accel_ros.nodes.clients.robot import ACTION, Outcome

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
BUILT_IN, CONDITION = {"Sequence", "Fallback"}, "_failureIf"
"""Nodes of BehaviorTree.CPP itself, and its attribute of any node."""


def example(name: str) -> Any:
    """The module of an example."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class FakeRobot:
    """Does as it is asked, and writes it down. outcomes: of its runs, by prompt."""

    log: ClassVar[list[str]] = []
    outcomes: ClassVar[dict[str, Outcome]] = {}

    def __init__(self, namespace: str) -> None:
        self.log.append(f"robot {namespace}")

    def __enter__(self) -> FakeRobot:
        return self

    def __exit__(self, *_: object) -> None:
        self.log.append("closed")

    def run(self, prompt: str, timeout_s: float) -> Outcome:
        self.log.append(prompt)
        return self.outcomes.get(prompt, Outcome("timeout", "not done"))

    def release(self) -> str:
        self.log.append("release")
        return ""

    def reclaim(self) -> str:
        self.log.append("reclaim")
        return ""


@pytest.fixture
def log(monkeypatch) -> list[str]:
    """What the robot of an example is asked."""
    monkeypatch.setattr(FakeRobot, "log", [])
    monkeypatch.setattr(FakeRobot, "outcomes", {"b": Outcome("error", "held")})
    return FakeRobot.log


def test_tree_names_the_action_its_fields_and_only_nodes_that_are_there():
    root = ElementTree.parse(EXAMPLES / "task_tree.xml").getroot()
    trees = {tree.attrib["ID"]: tree for tree in root.findall("BehaviorTree")}
    tree = trees[root.attrib["main_tree_to_execute"]]
    (model,) = root.findall("TreeNodesModel/Action")
    inputs = {port.attrib["name"]: port.attrib.get("default") for port in model.findall("input_port")}
    outputs = {port.attrib["name"] for port in model.findall("output_port")}
    assert inputs.pop("action_name") == ACTION
    assert inputs.keys() == RunPolicy.Goal.get_fields_and_field_types().keys()
    assert outputs == RunPolicy.Result.get_fields_and_field_types().keys()
    nodes = [node for node in tree.iter() if node is not tree]
    assert {node.tag for node in nodes} <= BUILT_IN | {model.attrib["ID"]}
    for node in (node for node in nodes if node.tag == model.attrib["ID"]):
        assert node.attrib.keys() <= inputs.keys() | outputs | {"action_name", CONDITION}
        assert node.attrib["action_name"].rpartition("/")[2] == ACTION and node.attrib["prompt"]
        assert any(node.attrib.get(f"success_{way}") for way in ("topic", "service", "question"))
    plugin = (EXAMPLES / "run_policy_node.cpp").read_text()
    assert f'CreateRosNodePlugin(RunPolicy, "{model.attrib["ID"]}")' in plugin
    kinds = {**RunPolicy.Goal.get_fields_and_field_types(), **dict.fromkeys(outputs, "string")}
    ports = [f'Port<{"std::" * (kind == "string")}{kind}>("{name}"' for name, kind in kinds.items()]
    assert [port for port in ports if port not in plugin] == []
    assert RunPolicy.Result.TERMINATION_COMPLETED == "completed"


def test_program_runs_its_tasks_until_one_fails(log, monkeypatch, capsys):
    module = example("run_task")
    monkeypatch.setattr(module, "Robot", FakeRobot)
    assert module.main(["a", "b", "c", "--namespace", "left"]) == 1
    assert log == ["robot left", "a", "b", "closed"] and "held" in capsys.readouterr().out


def test_moveit_moves_only_a_robot_that_is_released_before_and_after_the_task(log, monkeypatch):
    class Plan:
        trajectory = "trajectory"

    class Component:
        def set_start_state_to_current_state(self) -> None:
            log.append("from here")

        def set_goal_state(self, configuration_name: str) -> bool:
            log.append(configuration_name)
            return configuration_name != "nowhere"

        def plan(self) -> Plan:
            return Plan()

    class MoveItPy:
        def __init__(self, node_name: str) -> None:
            pass

        def get_planning_component(self, group: str) -> Component:
            return Component()

        def execute(self, trajectory: object, controllers: list[str]) -> bool:
            log.append("execute")
            return True

    planning = types.ModuleType("moveit.planning")
    planning.MoveItPy = MoveItPy  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "moveit", types.ModuleType("moveit"))
    monkeypatch.setitem(sys.modules, "moveit.planning", planning)
    module = example("moveit_before_and_after")
    monkeypatch.setattr(module, "Robot", FakeRobot)
    assert module.main(["a", "--before", "above", "--after", "home"]) == 0
    moves = [["release", "from here", place, "execute"] for place in ("above", "home")]
    assert log == ["robot ", *moves[0], "reclaim", "a", *moves[1], "closed"]
    with pytest.raises(RuntimeError, match="nowhere"):
        module.main(["a", "--before", "nowhere"])
    assert "reclaim" not in log[log.index("nowhere") :]
