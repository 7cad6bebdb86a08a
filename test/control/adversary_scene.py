"""The scene of an episode: a robot of some controller kind with limits and parameters, in simulated time.

It says what the controllers execute and report, and in which order things happen. A seed decides everything.
"""

from __future__ import annotations

import heapq
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from executed import Broken, TrajectoryController
from world import Clock, Disk, Parameters, Process, StreamLine, TrajectoryLine, make_contract, make_joints

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.contract.parts import ChunkTiming, Controller, Stream, Teleop
from vla_accel_ros.control.contract import Options
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.orders.homing import Action
from vla_accel_ros.control.outputs import on_arrival
from vla_accel_ros.control.outputs.reports import ReportedState
from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.sensing.chunk_slot import ChunkSlot
from vla_accel_ros.types import Chunk

S = 1_000_000_000
MS = S // 1000
EPOCH = 1_000 * S
KINDS = ("joint_trajectory", "forward_command", "servo_joint", "servo_twist")
MODES = ("block", "async", "blend", "rtc")
LEADS_S = (0.0, 0.01, 0.03, 0.1)
SCALE = 0.5
"""Share of its speed at which a controller executes while a person has pushed its slider."""
LINEAR, ANGULAR = 0.5, 1.0
"""Greatest speeds of a hand, see make_contract."""


@dataclass(frozen=True)
class Case:
    """What makes an episode. faults: which kinds may come; all when None. kind: of the controller, random
    when None, as chunk_hz is."""

    seed: int
    faults: tuple[str, ...] | None = None
    kind: str | None = None
    chunk_hz: int | None = None


@dataclass(frozen=True)
class Robot:
    """What the node is configured with. kind: of the controllers; ages in seconds. groups: the joints of each
    controller that takes trajectories, where they are several. stamped: False for controllers with another
    clock. chunks_from: as the parameter. actions: of controllers that have one, by their joints. teleop: of a
    person who may take over."""

    kind: str
    joints: tuple[str, ...]
    limits: JointLimits
    home: np.ndarray
    period_s: float
    chunk_age_s: float = 0.8
    joints_age_s: float = 0.3
    groups: tuple[tuple[str, ...], ...] = ()
    stamped: bool = True
    chunks_from: str = "topic"
    actions: dict[tuple[str, ...], str] = field(default_factory=dict)
    teleop: Teleop | None = None

    @property
    def takes_trajectories(self) -> bool:
        """Whether a joint_trajectory_controller moves its joints."""
        return self.kind in ("joint_trajectory", "servo_twist")

    @property
    def contract(self) -> Contract:
        """Its contract, as the node uses it."""
        contract = make_contract(
            self.kind,
            make_joints(self.joints, self.limits),
            rate_hz=1.0 / self.period_s,
            groups=self.groups,
            joint_states=Stream("joint_states", 100.0, self.joints_age_s),
            chunk=ChunkTiming(1 / 30, self.chunk_age_s),
            home={} if self.kind == "servo_twist" else dict(zip(self.joints, self.home.tolist())),
            actions=self.actions,
            teleop=self.teleop,
        )
        if self.stamped:
            return contract
        return contract.eased("joint_trajectory", on_arrival.SPEED, on_arrival.ACCELERATION)


class Ended(Exception):
    """The process, or the episode, has ended while a message was held up."""


class Scene(ABC):
    """One robot. stamp_off_ns, other: the error of joints' stamps, and the horizon and step of chunks, while
    these are faulty."""

    stamp_off_ns: int
    other: tuple[int, float]

    def __init__(self, case: Case) -> None:
        self.rng, self.array = random.Random(case.seed), np.random.default_rng(case.seed)
        self.seed, self.events, self.happened = case.seed, 0, Counter[str]()
        self.moved = 0.0
        self.log: list[str] = []
        rng = self.rng
        self.faults = tuple(self.table) if case.faults is None else case.faults
        self.robot = self._reached(self._robot(case.kind or rng.choices(KINDS, (4, 2, 1, 1))[0]))
        self.parameters = self._parameters()
        self.t_ns, self.offset_ns = 0, EPOCH
        self.end_ns = rng.randint(4, 10) * S
        self.broken: list[Broken] = []
        self._waiting: dict[str, Callable[[], object]] = {}
        limits = self.robot.limits
        self.where = limits.lower + self.array.uniform(0.2, 0.8, len(limits.lower)) * (
            limits.upper - limits.lower
        )
        self.sag = np.zeros(len(limits.lower))
        if self.robot.takes_trajectories and rng.random() < 0.5:
            self.sag = self.array.uniform(-0.01, 0.01, len(limits.lower))
        self.controller = TrajectoryController(self.robot.joints, self.where.copy(), rng.random() < 0.7)
        self.controller.from_desired |= not self.robot.stamped
        self.ticks: list[tuple[int, np.ndarray]] = []
        self.arrivals_ns = self.others_until_ns = self.rests_ns = 0
        self.foreign: list[tuple[int, int]] = []  # when others moved the joints
        self.ends_ns = self.left_ns = 0  # when all that was sent has ended, and what a dead process sent
        self.sent_ns: dict[tuple[str, ...], int] = {}
        apart = random.Random(f"told {case.seed}")
        self.told_every_ns, self.told_later_ns = apart.choice((2, 5, 20)) * MS, apart.randint(1, 10) * MS
        self.activated: set[str] = set()  # joints of controllers that have got nothing since
        self.written_ns = 0  # when the last message was written, with what had been told by then
        self.began = self.restarted = self.late = False
        self.anew = [0]
        self.holding: tuple[int, int] | None = None
        self.still: list[tuple[int, int]] = []
        self.newest_chunk_ns = self.newest_command_ns = 0
        self.kept: list[Chunk] = []
        self.number = 0
        self.joint_hz, self.chunk_hz = rng.choice((50, 100, 250)), rng.choice((5, 10, 20, 30))
        self.chunk_hz = case.chunk_hz or self.chunk_hz
        self.horizon, self.step_s = rng.choice((1, 5, 16, 32, 50)), rng.choice((0.01, 1 / 30, 0.05, 0.1))
        self.age_s, self.jitter = rng.uniform(0.02, 0.3), rng.choice((0.0, 0.0, 0.1, 0.4))
        self.delay_of_lead = rng.choice((0.1, 0.5, 1.0, 2.0))
        self.speed, self.phase = self.array.uniform(0.5, 4.0, (2, self._width))
        self.amount = rng.choice((0.1, 0.3, 0.6))
        self.pace = rng.choice((0.3, 1.0, 3.0))
        self.noise = rng.choice((0.0, 0.002, 0.02))
        self.until: dict[str, int] = {}
        self.glitch = np.zeros(len(limits.lower))
        self._felt_ns, self._told_wrong_ns = 0, -S
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self.disk = Disk()
        self.slowed_ns = dict[tuple[str, ...], int]()  # until when each controller executes slowly
        self.scaled = set[tuple[str, ...]]()  # controllers that told so, and have not rested since
        self.hidden = set[tuple[str, ...]]()  # controllers that told so, and have lied since
        self.began_ns = dict[tuple[str, ...], int]()  # of what each controller executes, by its clock
        self.node = self._start()

    @property
    @abstractmethod
    def table(self) -> dict[str, Callable[[Any, str], None]]:
        """What the kinds of faults are."""

    @abstractmethod
    def _sent(self, trajectory: Trajectory, start_ns: int, stamped: bool) -> None:
        """The node sent a trajectory that begins at start_ns, or on arrival if it is not stamped."""

    @abstractmethod
    def _commanded(self, command: np.ndarray) -> None:
        """The node sent a command of a stream."""

    @abstractmethod
    def _reached(self, robot: Robot) -> Robot:
        """With the ways to and from this robot."""

    @abstractmethod
    def _actions(self) -> dict[str, Action]:
        """Those of a new process, by topic."""

    @abstractmethod
    def _slot(self) -> ChunkSlot | None:
        """That of a new process."""

    @abstractmethod
    def _held_up(self) -> None:
        """The node is between a decision and its message."""

    def _next(self) -> None:
        self.t_ns, _, happen = heapq.heappop(self._queue)
        happen()

    def now_ns(self) -> int:
        """ROS time."""
        return self.t_ns + self.offset_ns

    def active(self, name: str) -> bool:
        """Whether a fault that lasts is there."""
        return self.until.get(name, -1) >= self.t_ns

    def _robot(self, kind: str) -> Robot:
        rng, d = self.rng, 1 if kind == "servo_twist" else self.rng.randint(1, 6)
        lower = self.array.uniform(-3.0, 0.0, d)
        limits = JointLimits(
            lower,
            lower + self.array.uniform(1.0, 5.0, d),
            self.array.uniform(0.5, 4.0, d),
            self.array.uniform(5.0, 40.0, d),
        )
        home = (limits.lower + limits.upper) / 2
        rate = rng.choice((100, 500)) if kind == "forward_command" else rng.choice((50, 100, 250))
        ages = rng.uniform(0.3, 1.0), rng.uniform(0.1, 0.5)
        return Robot(kind, tuple(f"j{i}" for i in range(d)), limits, home, 1.0 / rate, *ages)

    def _parameters(self) -> Parameters:
        rng = self.rng
        mode, blend_s, lead_s = rng.choice(MODES), rng.choice((0.0, 0.05, 0.2, 1.0)), rng.choice(LEADS_S)
        return Parameters(Options(mode, blend_s, rng.choice((0, 0, 1, 8))), lead_s)

    def _contract(self) -> Contract:
        return self.robot.contract

    def _start(self, go_on: bool = True) -> Process:
        """The first process, or the next. go_on: do not hold because the last ended uncleanly."""
        self.scaled.clear()  # it has been told nothing
        return Process(
            self._contract(),
            replace(self.parameters, stamped=self.robot.stamped),
            Clock(self.now_ns, lambda: self.t_ns),
            self._line,
            self.disk,
            go_on,
            self._actions(),
            slot=self._slot(),
            listens=self.robot.chunks_from != "slot",
        )

    def _line(self, controller: Controller) -> Any:
        """The channel of a controller."""
        if controller.kind != "joint_trajectory":
            return StreamLine(self._commanded)
        state = partial(self._report, controller.joints, [0]) if self.robot.stamped else None
        return TrajectoryLine(self._sent, self._held_up, state, self._is_acknowledged)

    def _is_acknowledged(self) -> bool:
        return self.t_ns >= self.arrivals_ns

    def _report(self, joints: tuple[str, ...], last_ns: list[int]) -> ReportedState | None:
        """What a joint_trajectory_controller newly tells of itself, as it reaches the node; not before it was
        activated."""
        at_ns = (self.t_ns - self.told_later_ns) // self.told_every_ns * self.told_every_ns
        if at_ns <= max(self.until.get("reactivate", -1), last_ns[0]):
            return None
        last_ns[0] = at_ns
        state = self._controller(joints).state(at_ns)
        reference = dict(zip(joints, state.position.tolist()))
        rests = state.velocity is None or not state.velocity.any()
        scaled = not rests and self.slowed_ns.get(joints, -1) >= at_ns
        self.scaled = self.scaled - {joints} if rests else self.scaled | ({joints} if scaled else set())
        speed = SCALE if scaled else 1.0
        return ReportedState(self.began_ns.get(joints), at_ns + self.offset_ns, reference, rests, speed)

    def _held(self, joints: tuple[str, ...]) -> tuple[np.ndarray | None, int]:
        """What a joint_trajectory_controller tells of a hold by its own will, every so often, a little later;
        not before it was activated."""
        if not self.robot.takes_trajectories:
            return None, 0
        told_ns = (self.written_ns - self.told_later_ns) // self.told_every_ns * self.told_every_ns
        if told_ns <= self.until.get("reactivate", -1):
            return None, 0
        return self._controller(joints).held(told_ns), told_ns + self.offset_ns

    def _controller(self, joints: tuple[str, ...]) -> TrajectoryController:
        """That of some joints."""
        return self.controller

    @property
    def _width(self) -> int:
        return len(self.robot.joints) + 6 * (self.robot.kind == "servo_twist")

    @property
    def _rates(self) -> int:
        """Width of a command of velocities."""
        return 6 if self.robot.kind == "servo_twist" else len(self.robot.joints)

    def _where(self, joints: tuple[str, ...]) -> np.ndarray:
        return self.where[[self.robot.joints.index(name) for name in joints]]

    def _at(self, t_ns: int, happen: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._queue, (t_ns, self._order, happen))

    def _every(self, period_ns: int, happen: Callable[[], None]) -> None:
        def again() -> None:
            late_ns = round(abs(self.rng.gauss(0.0, self.jitter)) * period_ns * 0.3) if self.jitter else 0
            self._at(self.t_ns + max(period_ns + late_ns - debt[0], 1), again)
            debt[0] = late_ns
            happen()

        debt = [0]
        self._at(self.rng.randrange(period_ns), again)

    def _lasts(self, name: str, shortest_s: float, longest_s: float) -> None:
        self.until[name] = self.t_ns + round(self.rng.uniform(shortest_s, longest_s) * S)

    def _input(self, name: str, give: Callable[[], object]) -> None:
        """An event of the node's; while it stalls, the newest of each name waits."""
        self.events += 1
        if self.active("stall"):
            self._waiting[name] = give
        else:
            self._called(give)

    def _called(self, give: Callable[[], object]) -> None:
        with suppress(Ended):
            give()
