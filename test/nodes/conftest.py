"""A graph of its own for every test of nodes, processes that end with the test, and an operator."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fork_server import ForkServer
from pluggy import Result
from rclpy.clock import Clock, ClockType
from running import NodeProcess, node_environment, sweep
from sensor_msgs.msg import Image
from stand_ins import Arm

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.running.environment import demo_contract

sys.path.append(str(Path(__file__).parents[2] / "bench"))
STARTED = pytest.StashKey[list[NodeProcess]]()
OPERATOR = pytest.StashKey[Operator]()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Result[pytest.TestReport], None]:
    """What failed shows what its nodes wrote, and what /diagnostics said of them at last."""
    outcome = yield
    report = outcome.get_result()
    if not report.failed:
        return
    for process in item.stash.get(STARTED, []):
        ended = process.process.poll()
        state = "running" if ended is None else f"exit status {ended}"
        report.sections.append((f"log of {process.node} ({state})", process.log[-8000:]))
    if OPERATOR in item.stash:
        lines = [f"{name}: {line.message}" for name, line in item.stash[OPERATOR].diagnostics.items()]
        report.sections.append(("the newest /diagnostics", "\n".join(lines)))


@pytest.fixture
def contract() -> Contract:
    """The simulated arm's contract."""
    return Contract.load(demo_contract())


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer | None]:
    """Forks the nodes that `start` starts; None, in a module that says so, has each start from nothing."""
    server = ForkServer(node_environment(tmp_path_factory.getbasetemp()))
    yield server
    server.close()


@pytest.fixture
def start(
    tmp_path: Path, ros_domain: int, fork_server: ForkServer | None, request: pytest.FixtureRequest
) -> Iterator[Callable[..., NodeProcess]]:
    """start(node, namespace="", **parameters): a node's process, ended with the test."""
    with starting(tmp_path, fork_server, request.node.stash.setdefault(STARTED, [])) as start:
        yield start


@pytest.fixture(scope="module")
def shared_start(
    tmp_path_factory: pytest.TempPathFactory, shared_domain: int, fork_server: ForkServer | None
) -> Iterator[Callable[..., NodeProcess]]:
    """As `start`, of nodes that all tests of a module use."""
    with starting(tmp_path_factory.mktemp("shared"), fork_server, []) as start:
        yield start


@contextmanager
def starting(
    folder: Path, server: ForkServer | None, started: list[NodeProcess]
) -> Iterator[Callable[..., NodeProcess]]:
    """What starts nodes, which are ended in the end. started: gets them."""

    def start(node: str, namespace: str = "", **parameters: object) -> NodeProcess:
        started.append(NodeProcess(node, folder, namespace, server=server, **parameters))
        return started[-1]

    yield start
    ending = [process.process for process in started if process.process.poll() is None]
    for process in ending:
        process.send_signal(signal.SIGTERM)
    for process in started:
        process.end(asked=process.process in ending)
    sweep({path for process in started for path in process.left})


@pytest.fixture
def operator(ros_domain: int, contract: Contract, request: pytest.FixtureRequest) -> Iterator[Operator]:
    """The operator of the robot without a namespace."""
    with Operator(contract) as operator:
        request.node.stash[OPERATOR] = operator
        yield operator


@pytest.fixture
def cameras(operator: Operator) -> Iterator[None]:
    """Small pictures of every camera of the operator's contract."""
    node = operator.node
    image = Image(height=8, width=8, encoding="rgb8", step=24, data=bytes(192))
    publishers = [node.create_publisher(Image, c.topic, qos.SENSOR) for c in operator.contract.cameras]

    def send() -> None:
        convert.set_stamp(image.header.stamp, operator.now_ns())
        for publisher in publishers:
            publisher.publish(image)

    timer = node.create_timer(1 / 30, send, clock=Clock(clock_type=ClockType.STEADY_TIME))
    yield
    timer.cancel()


@pytest.fixture
def arm(operator: Operator) -> Iterator[Arm]:
    """The joints and controllers of the operator's contract."""
    with Arm(operator) as arm:
        yield arm
