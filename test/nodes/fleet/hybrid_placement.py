"""The real scheduler node, over DDS, with a near and a distant replica whose time is given: scenarios.

A program, as a lifecycle node stays in the graph of its process: `python hybrid_placement.py SCENARIO`.
Status 0 if all is as it says.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from fleet_stand_ins import TimedReplica
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter
from scheduler_robot import AskingRobot

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.fleet.admission.forecast import Forecast, at_once
from vla_accel_ros.fleet.replicas.replica import Replica
from vla_accel_ros.nodes.fleet.clock import SchedulerClock
from vla_accel_ros.nodes.fleet.engines import Engines, Making
from vla_accel_ros.nodes.fleet.node import FleetSchedulerNode
from vla_accel_ros.nodes.running.environment import demo_contract

EDGE_S, CLOUD_S, NETWORK_S = 0.1, 0.04, 0.13
ROBOTS = 8
WAIT_S = 30.0
PARAMETERS = {
    "autostart": "true",
    "policy": "fifo",
    "stale_s": 60.0,
    "gone_s": 3600.0,
    "serve_s": 60.0,
    "most_load": 1.0,
}


class Tiers:
    """A nodes.fleet.engines.Engines: an edge that is slow and near, a cloud that is fast and far."""

    engine, updates = None, 0

    def __init__(self) -> None:
        self.edge = TimedReplica("edge", takes_s=EDGE_S)
        self.cloud = TimedReplica("cloud", takes_s=CLOUD_S, network_s=NETWORK_S)
        self.edge.step_s = self.cloud.step_s = Contract.load(demo_contract()).chunk.step_dt_s
        self.replicas: tuple[Replica, ...] = (self.edge, self.cloud)

    def close(self) -> None:
        pass


class SlowForecast:
    """Blocks until it may go on, from the second rate on."""

    def __init__(self) -> None:
        self.entered, self.go_on = threading.Event(), threading.Event()

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if arguments[1] > 0.1:
            self.entered.set()
            assert self.go_on.wait(10.0)
        return at_once(function, *arguments)


class HybridNode(FleetSchedulerNode):
    """The node, without a model. now_s: its time. The robots' rates bound nothing."""

    burst = 10**6

    def __init__(self, tiers: Tiers, forecast: Forecast) -> None:
        super().__init__()
        self.set_parameters([Parameter("model", value="none")])
        self.now_s, self._tiers = 0.0, tiers
        self.forecast = forecast
        self._time = SchedulerClock(lambda: None, lambda: self.now_s)

    def _start(self, making: Making) -> Engines:
        return self._tiers


@dataclass
class Hybrid:
    """The node, its replicas, and robots that ask when they are told to."""

    node: HybridNode
    tiers: Tiers
    robots: list[AskingRobot]
    executor: SingleThreadedExecutor

    def until(self, condition: Callable[[], object], what: str) -> None:
        for _ in range(round(WAIT_S / 0.02)):
            if condition():
                return
            self.executor.spin_once(0.02)
        raise TimeoutError(f"no {what}")

    def ask(self, robot: int, at_s: float) -> None:
        """Have a robot ask; returns when the node has it."""
        self.node.now_s, before = at_s, self.known()
        self.robots[robot].ask()
        self.until(lambda: self.known() > before, "request at the scheduler")

    def finish(self, replica: TimedReplica, at_s: float) -> None:
        """The chunk that a replica computes is there; returns when its robot has it."""
        self.node.now_s, before = at_s, self.answers()
        replica.finish()
        self.until(lambda: self.answers() > before, "answer")

    def known(self) -> int:
        scheduler = self.node._scheduler
        assert scheduler is not None
        return scheduler.waiting() + sum(len(one.served) for one in (self.tiers.edge, self.tiers.cloud))

    def answers(self) -> int:
        return sum(len(robot.answers) for robot in self.robots)

    def placed(self) -> dict[str, list[str]]:
        both = self.tiers.edge, self.tiers.cloud
        return {one.name: [round_.robot.removeprefix("/r") for round_ in one.served] for one in both}


@contextmanager
def running(
    tiers: Tiers | None = None,
    count: int = ROBOTS,
    chunks_per_s: float = 0.01,
    forecast: Forecast | None = None,
    **parameters: object,
) -> Iterator[Hybrid]:
    """All of it, once every robot is admitted."""
    settings = {**PARAMETERS, **parameters}
    given = [word for name, value in settings.items() for word in ("-p", f"{name}:={value}")]
    rclpy.init(args=["--ros-args", *given])
    tiers = tiers or Tiers()
    node = HybridNode(tiers, forecast or SlowForecast())
    asking = [Node("robot", namespace=f"/r{number}", use_global_arguments=False) for number in range(count)]
    executor = SingleThreadedExecutor()
    for each in (node, *asking):
        executor.add_node(each)
    robots = [AskingRobot(each, Path(demo_contract()), chunks_per_s=chunks_per_s) for each in asking]
    for robot in robots:
        robot.asking = False
    hybrid = Hybrid(node, tiers, robots, executor)
    hybrid.until(lambda: all(r.admissions and r.admissions[-1].admitted for r in robots), "admissions")
    yield hybrid
    node.end()
    executor.shutdown()
    for one in (node, *asking):
        one.destroy_node()
    rclpy.shutdown()


def queue(hybrid: Hybrid) -> None:
    """Who would wait longer for the edge goes to the cloud, and the next comes back."""
    edge, cloud = hybrid.tiers.edge, hybrid.tiers.cloud
    for robot in range(3):
        hybrid.ask(robot, at_s=0.0)
    # The edge answers at 0.1, 0.2 and 0.3 s; the cloud at 0.17 s, before the second.
    assert hybrid.placed() == {"edge": ["0"], "cloud": ["1"]}
    hybrid.finish(edge, at_s=0.1)
    assert hybrid.placed() == {"edge": ["0", "2"], "cloud": ["1"]}
    hybrid.finish(cloud, at_s=0.17)
    hybrid.finish(edge, at_s=0.2)
    hybrid.ask(3, at_s=0.3)  # the edge is free, so it is the edge's, however fast the cloud is
    hybrid.ask(4, at_s=0.35)  # the edge answers at 0.5 s, the cloud would at 0.52 s
    assert hybrid.placed() == {"edge": ["0", "2", "3"], "cloud": ["1"]}
    hybrid.ask(5, at_s=0.36)  # it would be answered at 0.6 s, by the cloud at 0.53 s
    assert hybrid.placed() == {"edge": ["0", "2", "3"], "cloud": ["1", "5"]}
    assert {answer.replica for answer in hybrid.robots[1].answers} == {"cloud"}


def trace(hybrid: Hybrid) -> None:
    """Each of a random trace goes where the arithmetic says."""
    chance, now_s = random.Random(7), 0.0
    edge, cloud = hybrid.tiers.edge, hybrid.tiers.cloud
    free = {"edge": 0.0, "cloud": 0.0}  # when each is expected to compute nothing of what it has
    waiting: list[str] = []
    idle = set(map(str, range(ROBOTS)))
    ends: dict[str, float] = {}
    expected: dict[str, list[str]] = {"edge": [], "cloud": []}

    def place(now_s: float) -> None:
        if waiting and "edge" not in ends:
            expected["edge"].append(waiting.pop(0))
            free["edge"] = ends["edge"] = now_s + EDGE_S
        if "cloud" not in ends:
            answer_s = now_s + CLOUD_S + NETWORK_S
            sooner = int((answer_s - max(now_s, free["edge"])) / EDGE_S)  # of them the edge answers before
            if len(waiting) > sooner:
                expected["cloud"].append(waiting.pop(sooner))
                ends["cloud"] = answer_s

    for _ in range(120):
        now_s += chance.expovariate(1 / 0.045)
        while ends and min(ends.values()) <= now_s:
            name = min(ends, key=lambda one: ends[one])
            at_s = ends.pop(name)
            hybrid.finish(edge if name == "edge" else cloud, at_s)
            idle.add(expected[name][-1])
            place(at_s)
            assert hybrid.placed() == expected, at_s
        if idle:
            robot = chance.choice(sorted(idle))
            idle.remove(robot)
            waiting.append(robot)
            hybrid.ask(int(robot), now_s)
            place(now_s)
            assert hybrid.placed() == expected, now_s
    assert len(expected["cloud"]) > 10 < len(expected["edge"])
    assert np.mean([answer.replica == "cloud" for r in hybrid.robots for answer in r.answers]) < 0.5


def forecast(hybrid: Hybrid) -> None:
    """Chunks are answered while it is computed how many robots fit."""
    assert isinstance(hybrid.node.forecast, SlowForecast)
    slow, edge, robot = hybrid.node.forecast, hybrid.tiers.edge, hybrid.robots[1]
    robot.description = replace(robot.description, chunks_per_s=1.0)
    before = len(robot.admissions)
    robot.describe()  # another description, which is judged anew
    hybrid.until(slow.entered.is_set, "forecast")
    for number in range(3):
        hybrid.ask(0, at_s=float(number))
        hybrid.finish(edge, at_s=number + EDGE_S)
    assert len(hybrid.robots[0].answers) == 3
    assert not any(told.admitted for told in robot.admissions[before:])
    slow.go_on.set()
    hybrid.until(lambda: robot.admissions[-1].admitted, "admission")


SCENARIOS = {each.__name__: each for each in (queue, trace, forecast)}

if __name__ == "__main__":
    with running() as hybrid:
        SCENARIOS[sys.argv[1]](hybrid)
