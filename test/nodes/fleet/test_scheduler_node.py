"""The fleet's scheduler over real topics: each robot gets its own chunks, also when another is killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import rclpy
from builders import CALM, make_checkpoint, make_config
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.node import Node
from running import ROOT, NodeProcess, node_environment
from scheduler_robot import AskingRobot, spin_until

from vla_accel_msgs.msg import FleetRequest, LanguageOutput
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.fleet import fleet_convert
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.tools.cli import main

PROGRAM = Path(__file__).with_name("scheduler_robot.py")


class Watching:
    """What /diagnostics says of the scheduler. seen: names in the newest word; messages: of each."""

    def __init__(self, node: Node) -> None:
        self.seen: set[str] = set()
        self.messages: dict[str, str] = {}
        node.create_subscription(DiagnosticArray, "/diagnostics", self.heard, qos.REPORT)

    def heard(self, message: DiagnosticArray) -> None:
        names = {line.name.partition(": ")[2]: line.message for line in message.status}
        if all(line.name.startswith("fleet_scheduler: ") for line in message.status):
            self.seen, self.messages = set(names), names


@pytest.fixture
def nodes(ros_domain: int) -> Iterator[Callable[[str], Node]]:
    """nodes(namespace): a node of this process."""
    context = rclpy.Context()
    rclpy.init(context=context)
    made: list[Node] = []

    def make(namespace: str) -> Node:
        made.append(Node("robot", namespace=namespace, context=context))
        return made[-1]

    yield make
    for node in made:
        node.destroy_node()
    rclpy.shutdown(context=context)


def renamed(folder: Path) -> Path:
    """The simulated arm's contract with other names of joints."""
    path = folder / "other.yaml"
    path.write_text(Path(demo_contract()).read_text().replace("shoulder_pan", "turret"))
    return path


def test_each_robot_gets_its_own_chunks_and_one_goes_on_when_another_is_killed(
    start: Callable[..., NodeProcess], nodes: Callable[[str], Node], tmp_path: Path
) -> None:
    model = make_checkpoint(tmp_path / "model", make_config(horizon=32), reach=CALM)
    start("fleet", autostart=True, model=str(model), steps=2, gone_s=6.0)
    node = nodes("/left")
    left = AskingRobot(node, Path(demo_contract()), horizon="static:5")
    watching = Watching(node)
    environment = {**node_environment(tmp_path), "PYTHONPATH": f"{ROOT}:{PROGRAM.parent}"}
    command = [sys.executable, str(PROGRAM), "/right", str(renamed(tmp_path))]
    log = tmp_path / "right.log"
    with open(log, "wb") as out:
        right = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
    try:
        until = partial(spin_until, (node,))
        until(lambda: left.admissions and left.admissions[-1].admitted, 90.0, "admission")
        until(lambda: len(left.answers) >= 3, 30.0, "three chunks")
        until(lambda: "answer 3" in log.read_text(), 60.0, "chunks of the other robot")
        until(lambda: {"robot /left", "robot /right", "queue"} <= watching.seen, 10.0, "both robots' lines")
        NodeProcess.any_killed = True
        right.kill()
        right.wait()
        until(lambda: "robot /right" not in watching.seen, 60.0, "end of the other robot's line")
        assert watching.messages["queue"].startswith("1 robots are served")
        before = len(left.answers)
        until(lambda: len(left.answers) >= before + 3, 30.0, "chunks after it was killed")
    finally:
        right.kill()
        right.wait()
    assert not left.strange and not left.refusals
    assert [answer.round.number for answer in left.answers] == list(range(len(left.answers)))
    for answer in left.answers:
        assert answer.chunk is not None and answer.chunk.executed == 5 and answer.replica == "local"


def test_a_second_scheduler_in_the_domain_is_named_by_both_and_by_the_doctor(
    start: Callable[..., NodeProcess],
    nodes: Callable[[str], Node],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = make_checkpoint(tmp_path / "model", make_config(horizon=32), reach=CALM)
    first = start("fleet", autostart=True, model=str(model), steps=2)
    robot = AskingRobot(nodes("/left"), Path(demo_contract()))
    watching = Watching(robot.node)
    until = partial(spin_until, (robot.node,))
    until(lambda: watching.messages.get("graph") == "no other scheduler", 90.0, "scheduler that is alone")
    second = start("fleet", "spare", autostart=True, model=str(model), steps=2)
    said = "another fleet scheduler is in this ROS domain and serves the same robots"
    until(lambda: f"{said}: /spare/fleet_scheduler; end all but one" in first.log, 90.0, "word of the second")
    until(lambda: f"{said}: /fleet_scheduler; end all but one" in second.log, 90.0, "word of the first")
    until(lambda: said in watching.messages.get("graph", ""), 30.0, "word on /diagnostics")
    until(lambda: robot.node.count_publishers("fleet/admission") == 2, 30.0, "topics of both")
    capsys.readouterr()
    assert main(["doctor", "--json", "--seconds", "0.5", "--namespace", "left"]) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [(f["level"], f["what"], f["mend"]) for f in found if f["about"] == "fleet/admission"] == [
        (
            "error",
            "2 fleet schedulers serve this robot: /fleet_scheduler, /spare/fleet_scheduler",
            "end all but one, or give each fleet its own ROS_DOMAIN_ID",
        )
    ]
    assert second.end() == 0
    until(
        lambda: watching.messages.get("graph") == "no other scheduler", 60.0, "scheduler that is alone again"
    )


def test_two_schedulers_of_one_name_are_named(start: Callable[..., NodeProcess], tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path / "model", make_config(horizon=32), reach=CALM)
    first = start("fleet", autostart=True, model=str(model), steps=2)
    first.wait_for_log("robots that need one a second fit")
    start("fleet", autostart=True, model=str(model), steps=2)
    first.wait_for_log("serves the same robots: /fleet_scheduler; end all but one")


def test_what_does_not_fit_is_refused_in_words_and_a_robot_that_goes_takes_its_topics_along(
    start: Callable[..., NodeProcess], nodes: Callable[[str], Node], tmp_path: Path
) -> None:
    model = make_checkpoint(tmp_path / "model", make_config(horizon=32), reach=CALM)
    fleet = start("fleet", autostart=True, model=str(model), steps=2, policy="fifo")
    watcher = nodes("/watcher")
    bad, good = nodes("/bad"), nodes("/good")
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(Path(demo_contract()).read_text().replace("image: base_0_rgb", "image: no_such_camera"))
    refused, served = AskingRobot(bad, wrong), AskingRobot(good, Path(demo_contract()))
    other = AskingRobot(nodes("/other"), Path(demo_contract()), horizon="often")
    nested = AskingRobot(nodes("/nested"), Path(demo_contract()))
    nested.description = replace(nested.description, contract="urdf: " + "[" * 2000)
    nested.describe()
    until = partial(spin_until, (watcher, bad, good, other.node, nested.node))

    def was_told(robot: AskingRobot, why: str) -> bool:
        return any(why in told.reason for told in robot.admissions)

    until(lambda: was_told(other, "'often'"), 90.0, "refusal of a horizon")
    until(lambda: was_told(refused, "no_such_camera"), 90.0, "refusal of a contract")
    until(lambda: was_told(nested, "nested too deeply"), 30.0, "refusal of a nested text")
    assert not any(told.admitted for told in (*other.admissions, *refused.admissions))
    before = len(served.answers)
    until(lambda: len(served.answers) > before, 30.0, "chunk")
    mine = {f"/good/fleet/{name}" for name in ("admission", "call", "answer")}

    def published() -> set[str]:
        found = watcher.get_publisher_names_and_types_by_node("fleet_scheduler", "/")
        return {name for name, _ in found}

    until(lambda: mine <= published(), 10.0, "topics of a robot that is there")
    served.asking = False
    served.node.destroy_publisher(served.told)
    until(lambda: not (mine & published()), 10.0, "end of the topics of a robot that has gone")
    assert "Traceback" not in fleet.log


def test_a_robot_that_would_make_all_late_is_refused_before_it_is_tried_and_diagnostics_say_why(
    start: Callable[..., NodeProcess], nodes: Callable[[str], Node], tmp_path: Path
) -> None:
    model = make_checkpoint(tmp_path / "model", make_config(horizon=32), reach=CALM)
    start("fleet", autostart=True, model=str(model), steps=2, in_time_s=1e-5)
    first, second = nodes("/first"), nodes("/second")
    robots = AskingRobot(first, Path(demo_contract())), AskingRobot(second, Path(demo_contract()))
    watching = Watching(first)

    def judged() -> bool:
        last = [robot.admissions[-1] for robot in robots if robot.admissions]
        late = any("in 100 come within" in told.reason for told in last)
        return late and any(told.admitted for told in last)

    spin_until((first, second), judged, 90.0, "admissions")
    served = [robot for robot in robots if robot.admissions[-1].admitted]
    (refused,) = [robot for robot in robots if robot not in served]
    why = refused.admissions[-1].reason
    assert "of which 99 in 100 come within 1e-05 s are left (1 robots have 2)" in why

    def said() -> bool:
        return watching.messages.get(f"robot {refused.name}") == f"refused: {why}"

    spin_until((first, second), said, 10.0, "reason in /diagnostics")
    assert len(served) == 1 and not refused.answers


def test_strangers_stop_no_robot_and_what_they_sent_is_quoted_briefly(
    start: Callable[..., NodeProcess], nodes: Callable[[str], Node], tmp_path: Path
) -> None:
    model = make_checkpoint(tmp_path / "model", make_config(horizon=32), reach=CALM)
    fleet = start("fleet", autostart=True, model=str(model), steps=2)
    robot = AskingRobot(nodes("/left"), Path(demo_contract()), chunks_per_s=5.0)
    stranger = AskingRobot(nodes("/stranger"), Path(demo_contract()))
    stranger.asking = False
    until = partial(spin_until, (robot.node, stranger.node))
    until(lambda: len(robot.answers) >= 2 and stranger.admissions, 90.0, "chunks and admission")
    said: list[LanguageOutput] = []
    stranger.node.create_subscription(LanguageOutput, "fleet/text", said.append, qos.REPORT)
    questions = stranger.node.create_publisher(FleetRequest, "fleet/question", qos.REPORT)
    in_its_name = stranger.node.create_publisher(FleetRequest, "/left/fleet/request", qos.COMMAND)
    until(lambda: in_its_name.get_subscription_count() and questions.get_subscription_count(), 30.0, "ears")
    # The scheduler keeps one unread request of a robot: one of its own would take a stranger's place.
    answered, robot.asking = len(robot.answers), False
    until(lambda: len(robot.answers) > answered, 30.0, "answer to the last request")
    request = robot.request()

    def refused(number: int) -> bool:
        return len(robot.refusals) > number

    for number, task in enumerate((2**64 - 1, 5000)):
        wild = replace(request, round=replace(request.round, task=task))
        in_its_name.publish(fleet_convert.request_to_message(wild))
        until(partial(refused, number), 30.0, "refusal")
    assert all("task 0, round" in refusal for refusal in robot.refusals)
    long = fleet_convert.request_to_message(stranger.request())
    long.instruction = "say " + "x" * 5_000_000
    questions.publish(long)
    until(lambda: said, 60.0, "refusal of a question")
    stranger.description = replace(stranger.description, contract="a: [" + "x, " * 40_000 + "]")
    stranger.describe()
    until(lambda: not stranger.admissions[-1].admitted, 60.0, "refusal of the stranger")
    assert said[0].refused and len(said[0].text) <= 500 and "5000004" in said[0].text
    assert "16384" in stranger.admissions[-1].reason and len(stranger.admissions[-1].reason) <= 500
    before, robot.asking = len(robot.answers), True
    until(lambda: len(robot.answers) >= before + 3, 30.0, "chunks as before")
    assert max(map(len, fleet.log.splitlines())) < 600 and "Traceback" not in fleet.log
