"""The lifecycle node that serves many robots with one model: requests of robots in, their chunks out.

Robots are found in the graph: a namespace with a publisher of fleet/robot is a robot, and its topics stay
open (nodes/fleet/topics.py) until it has gone. fleet/serving/scheduler.py decides whose turn it is. Only this
node's thread calls it: for each message, when a replica has a result, and at STEP_HZ for what depends on time
alone. The model is loaded as in the node inference, with the contract of one robot; the others only need
their own statistics. It is loaded in this process, or in Ray actors (nodes/fleet/engines.py). How many robots
fit is measured while configuring.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial

import torch
from diagnostic_msgs.msg import DiagnosticStatus

from vla_accel_msgs.msg import FleetRequest, FleetRobot, Session
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.horizon import ALL, Horizons
from vla_accel_ros.engine.goals import described
from vla_accel_ros.fleet.admission.background import Background
from vla_accel_ros.fleet.admission.forecast import Forecast, at_once
from vla_accel_ros.fleet.admission.replica_model import Measured
from vla_accel_ros.fleet.admission.verdict import Limits, robots_that_fit
from vla_accel_ros.fleet.protocol import (
    MOST_WORDS,
    Admission,
    ChunkAnswer,
    ChunkRequest,
    RobotDescription,
    Round,
    TextAnswer,
)
from vla_accel_ros.fleet.replicas.ray_cluster import Deadlines
from vla_accel_ros.fleet.robot.client import USEFUL
from vla_accel_ros.fleet.rules.rule import RuleOptions, rule_factory
from vla_accel_ros.fleet.serving.scheduler import FleetScheduler
from vla_accel_ros.fleet.serving.settings import Cut, Ports, Settings, read_priorities
from vla_accel_ros.models.checkpoints.progress import Meter
from vla_accel_ros.models.device import device_fault
from vla_accel_ros.nodes.declare import record, value
from vla_accel_ros.nodes.fleet import fleet_convert
from vla_accel_ros.nodes.fleet.clock import SchedulerClock
from vla_accel_ros.nodes.fleet.contracts import JOINING, Reader
from vla_accel_ros.nodes.fleet.engines import Engines, LocalEngine, Making, RayEngines
from vla_accel_ros.nodes.fleet.reports import NAME, OtherSchedulers, of_engine, of_fleet, of_graph
from vla_accel_ros.nodes.fleet.sessions import Sessions
from vla_accel_ros.nodes.fleet.topics import RobotTopics, robots
from vla_accel_ros.nodes.inference.loading import choices
from vla_accel_ros.nodes.inference.setup import chosen
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.params.fleet_scheduler import FLEET_SCHEDULER
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.nodes.running.lifecycle import ManagedNode
from vla_accel_ros.nodes.running.process import run
from vla_accel_ros.nodes.running.shutdown import fatal
from vla_accel_ros.nodes.throttled import Throttled

STEP_HZ = 50.0
LOOK_HZ = 4.0
"""How often the graph is checked for robots."""
OPENING_S = 0.01
"""How long topics of new robots are opened, a millisecond each, before others are served again."""
ASK_AGAIN_S = 1.0


class FleetSchedulerNode(ManagedNode):
    """The node fleet_scheduler; see the module docstring and nodes/params/fleet_scheduler.py."""

    forecast: Forecast = staticmethod(at_once)
    """It takes long, so a thread computes it."""
    burst = Settings.burst

    def __init__(self) -> None:
        super().__init__(NAME, FLEET_SCHEDULER, "fleet")
        self._unopened: list[str] = []
        self._joining: list[RobotTopics] = []
        self._topics: dict[str, RobotTopics] = {}
        self._unreadable, self._refusal = 0, Throttled(self, 1.0)
        self._ignored = Throttled(self, 10.0)
        self._others = OtherSchedulers(self)

    def configure(self) -> None:
        self._contract = contract = Contract.load(value(self, "contract") or demo_contract())
        self._time = SchedulerClock(lambda: self.now_ns() if self.get_clock().ros_time_is_active else None)
        make = rule_factory(value(self, "rule"), record(self, RuleOptions))
        making = Making(chosen(self), contract)
        self._guard = self.create_guard_condition(self._step)
        self.on_release(partial(self.destroy_guard_condition, self._guard))
        self._engines = engines = self._start(making)
        self.on_release(engines.close)
        within_s = value(self, "in_time_s") or (1.0 - USEFUL) * contract.chunk.max_age_s
        load, least_rate = value(self, "most_load"), value(self, "least_rate")
        limits = Limits(value(self, "most_robots"), load, least_rate, within_s)
        name = uuid.uuid4().hex[:12]
        warn = self.get_logger().warning
        self._sessions = Sessions(name, making.load.model, self.now_ns, self._tell_session, warn)
        self.on_release(self._sessions.close)
        ports = Ports(self._admit, self._call, self._answer, self._wake, self._text, self._sessions.told)
        granted = read_priorities(value(self, "priorities"))
        settings = record(self, Settings, burst=self.burst, priorities=granted, limits=limits)
        forecasts = Background(self._wake, self.forecast, JOINING)
        self.on_release(forecasts.close)
        self._scheduler = FleetScheduler(
            name, engines.replicas, make, ports, settings, self._horizon, forecasts
        )
        fit = robots_that_fit(Measured.all(engines.replicas), 1.0, limits)
        self.get_logger().info(
            f"{self._scheduler.capacity_hz:.3g} chunks a second: {fit} robots that need one a second fit, "
            f"with {within_s:.3g} s to wait"
        )
        self._reader = Reader(self._wake)
        self.on_release(self._reader.close)
        self._others.look()
        self.every(1.0 / STEP_HZ, self._open_robots)
        self.every(1.0 / STEP_HZ, self._step)
        self.every(1.0 / LOOK_HZ, self._look)

    def deactivate(self) -> None:
        self._unopened, self._joining = [], []
        for robot in tuple(self._topics):
            self._close_robot(robot)
        self._scheduler.close(self._time.now_s())

    def release(self) -> None:
        for name in ("_scheduler", "_engines"):  # the next configuration must find the model's memory
            self.__dict__.pop(name, None)

    def hopeless(self, error: Exception) -> str:
        return "the GPU refuses every call of this process" if device_fault(error) else ""

    def cannot_start(self) -> None:
        if value(self, "end_if_refused"):
            fatal(self.trouble)

    def clock_jumped(self) -> None:
        self._time.jumped(self.jumped_ns)

    def _start(self, making: Making) -> Engines:
        log, load = self.get_logger(), making.load
        if value(self, "replicas") == "ray":
            replicas, address = value(self, "ray_replicas"), value(self, "ray_address")
            deadlines = Deadlines(serve=value(self, "serve_s"), start=value(self, "start_s"))
            remote = RayEngines(making, replicas, address, torch.cuda.device_count(), deadlines)
            for replica in remote.replicas:
                network_ms = 1e3 * replica.network_s
                log.info(f"replica {replica.name}: process {replica.pid}, network {network_ms:.1f} ms")
                if replica.config is not None:
                    log.info(f"replica {replica.name}: {described(load.config, replica.config)}")
            return remote
        with Meter(f"loading {load.model.name}") as meter:
            engine = load.engine(making.contract, log.warning, meter)
        log.info(f"loaded {load.model}: {engine.policy.config.kind}, {meter}; {choices(engine, load)}")
        return LocalEngine(engine, making, log.warning)

    def _horizon(self, description: RobotDescription) -> Cut:
        """The function that cuts a robot's chunks. Raises ValueError for an invalid horizon, or one that
        needs information that chunks lack."""
        horizons = Horizons(description.horizon or ALL)
        horizons.check(self._engines.updates)
        return horizons.limit

    def _wake(self) -> None:
        """Wake the node's thread; may be called from any thread."""
        if self.configured:
            self._guard.trigger()

    def _step(self) -> None:
        if self.active:
            self._take_descriptions()
            self._scheduler.step(self._time.now_s())

    def _look(self) -> None:
        """Open the topics of new robots, close those of robots that have gone."""
        self._others.look()
        if not self._time.look(self._engines.replicas):
            return  # how many robots fit is not known yet
        self._sessions.look()
        present = robots(self)
        for robot in tuple(self._topics):
            if robot not in present:
                self._close_robot(robot)
        self._unopened = sorted(present - self._topics.keys())

    def _open_robots(self) -> None:
        """Open the topics of new robots for OPENING_S at most: first those with which all of them join."""
        until_s = time.monotonic() + OPENING_S
        while self._unopened and time.monotonic() < until_s:
            if len(self._topics) >= 2 * value(self, "most_robots"):
                self._ignored.error(
                    f"{len(self._unopened)} robots are ignored, {self._unopened[0]} among them: there are "
                    f"{len(self._topics)} others; raise most_robots"
                )
                self._unopened = []
                return
            robot = self._unopened.pop(0)
            topics = RobotTopics(self, robot, self._on_robot, self._on_request, self._on_question)
            self._topics[robot] = topics
            self._joining.append(topics)
        while self._joining and time.monotonic() < until_s:
            self._joining.pop(0).open()

    def _close_robot(self, robot: str) -> None:
        self._topics.pop(robot).close()
        self._reader.forget(robot)
        self._scheduler.gone(robot, self._time.now_s())
        self.get_logger().info(f"{robot} has gone")

    def _on_robot(self, topics: RobotTopics, message: FleetRobot) -> None:
        if not self.active:
            return
        try:
            description = fleet_convert.description_from_message(message)
            _check_name(topics, description.robot)
        except ValueError as error:
            if _names_its_sender(topics, message):
                self._refuse_robot(topics, message.engine, error)
            else:
                self._refuse(topics, error)
            return
        if description == topics.description:  # a sign of life
            self._scheduler.described(description, self._time.now_s())
        elif not self._reader.read(description):
            reason = "the scheduler reads this robot's contract after those that came before"
            self._admit(Admission(description.engine, topics.robot, self._scheduler.name, False, reason))

    def _take_descriptions(self) -> None:
        """Tell the scheduler, for OPENING_S at most, of the robots whose contracts were read."""
        until_s = time.monotonic() + OPENING_S
        for description, contract in self._reader.finished():
            topics = self._topics[description.robot]
            if isinstance(contract, ValueError):
                self._refuse_robot(topics, description.engine, contract)
            else:
                topics.open()
                topics.description, topics.contract = description, contract
                self._scheduler.described(description, self._time.now_s())
            if time.monotonic() > until_s:
                return

    def _refuse_robot(self, topics: RobotTopics, engine: str, error: ValueError) -> None:
        """Refuse a description, and forget the earlier one of the same process."""
        self._refuse(topics, error)
        if topics.description is None or topics.description.engine == engine:
            self._scheduler.gone(topics.robot, self._time.now_s())
            topics.description = topics.contract = None
        self._admit(Admission(engine, topics.robot, self._scheduler.name, False, str(error)))

    def _on_request(self, topics: RobotTopics, message: FleetRequest) -> None:
        if (request := self._read(topics, message, self._refuse_request)) is not None:
            self._scheduler.asked(request, self._time.now_s())
            self._scheduler.step(self._time.now_s())

    def _on_question(self, topics: RobotTopics, message: FleetRequest) -> None:
        if (request := self._read(topics, message, self._refuse_question)) is not None:
            self._scheduler.questioned(request, self._time.now_s())
            self._scheduler.step(self._time.now_s())

    def _read(
        self,
        topics: RobotTopics,
        message: FleetRequest,
        refuse: Callable[[RobotTopics, FleetRequest, str], None],
    ) -> ChunkRequest | None:
        """A request of a known robot; None if it is refused."""
        if not self.active:
            return None
        try:
            description, contract = topics.description, topics.contract
            _check_name(topics, message.robot)
            if description is None or contract is None:
                raise ValueError(f"{topics.robot} sent a request, but its description is missing or refused")
            request = fleet_convert.request_from_message(message, contract)
            if topics.robot not in self._scheduler.robots():  # it was silent for long
                self._scheduler.described(description, self._time.now_s())
        except ValueError as error:
            self._refuse(topics, error)
            refuse(topics, message, str(error))
            return None
        return request

    def _refuse(self, topics: RobotTopics, error: ValueError) -> None:
        self._unreadable += 1
        self._refusal.warning(f"in {topics.robot}: {error}")

    def _refuse_request(self, topics: RobotTopics, message: FleetRequest, why: str) -> None:
        if not _names_its_sender(topics, message):
            return
        round_ = Round(message.engine, message.robot, message.task, message.round)
        sent_ns = convert.stamp_ns(message.header.stamp)
        name, attempt = self._scheduler.name, message.attempt
        self._answer(ChunkAnswer(round_, attempt, name, sent_ns, refusal=why, retry_s=ASK_AGAIN_S))

    def _refuse_question(self, topics: RobotTopics, message: FleetRequest, why: str) -> None:
        round_ = Round(message.engine, topics.robot, message.task, message.round)
        stamp_ns, question = convert.stamp_ns(message.stamp), message.instruction[:MOST_WORDS]
        self._text(TextAnswer(round_, question, stamp_ns, why, refused=True))

    def _admit(self, admission: Admission) -> None:
        topics = self._topics.get(admission.robot)
        if topics is not None:
            topics.admission.publish(fleet_convert.admission_to_message(admission))
            if admission == topics.admitted:  # repeated, because the robot had missed it
                return
            topics.admitted = admission
        rate = f"{admission.chunks_per_s:.3g} chunks a second"
        state = f"is served, {rate}" if admission.admitted else "is not served"
        log = self.get_logger()
        if admission.reason:
            log.warning(f"{admission.robot} {state}: {admission.reason}")
        else:
            log.info(f"{admission.robot} {state}")

    def _call(self, round_: Round) -> None:
        topics = self._topics.get(round_.robot)
        if topics is not None:
            topics.call.publish(fleet_convert.call_to_message(round_))

    def _answer(self, answer: ChunkAnswer) -> None:
        topics = self._topics.get(answer.round.robot)
        if topics is not None:
            contract = topics.contract or self._contract  # a refusal needs no contract
            topics.answer.publish(fleet_convert.answer_to_message(answer, contract))

    def _text(self, answer: TextAnswer) -> None:
        topics = self._topics.get(answer.round.robot)
        if topics is not None:
            topics.text.publish(fleet_convert.text_to_message(answer, self._scheduler.name))

    def _tell_session(self, robot: str, session: Session) -> None:
        topics = self._topics.get(robot)
        if topics is not None:
            topics.session.publish(session)

    def statuses(self) -> list[DiagnosticStatus]:
        now_s = self._time.now_s()
        lines = of_fleet(self._scheduler, value(self, "rule"), self._unreadable, now_s)
        lines.append(of_graph(self._others.sentence))
        engine = self._engines.engine
        return lines if engine is None else [*lines, of_engine(engine)]


def _names_its_sender(topics: RobotTopics, message: FleetRobot | FleetRequest) -> bool:
    """Whether a message that is refused says who it is from, in letters that an answer may repeat."""
    return message.robot == topics.robot and 0 < len(message.engine) <= fleet_convert.MOST_LETTERS


def _check_name(topics: RobotTopics, robot: str) -> None:
    """Raises ValueError for a message that names another robot."""
    if robot != topics.robot:
        raise ValueError(f"a message names the robot {robot[:80]!r}; `robot` must be its topic's namespace")


def main(args: Sequence[str] | None = None) -> int:
    """Entry point of `ros2 run vla_accel_ros fleet_scheduler`."""
    return run(FleetSchedulerNode, args)
