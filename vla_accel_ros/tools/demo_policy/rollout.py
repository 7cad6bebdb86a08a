"""One episode in simulated time: engine, trajectory buffer and controllers as on the robot, without ROS.

Observations are taken at a fixed period and their chunks take effect after a fixed latency, so an episode
depends only on its seed and the weights, not on this machine's speed. The defaults are the demo's values on
two CPU cores. In mode `block` the next observation waits until the arm is at rest. The control conditions
remove what the policy should need: the right instruction, the images, or all motion. An event changes the
scene or the instruction on the way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.chunking.buffer import TrajectoryBuffer
from vla_accel_ros.control.chunking.rtc import RealTimeChunking, RtcSettings
from vla_accel_ros.control.chunking.tempo import USUAL
from vla_accel_ros.control.contract import Options
from vla_accel_ros.control.horizon import ALL, Horizons, limited
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.kv.prefixes import Prefix
from vla_accel_ros.engine.request import Act, Request
from vla_accel_ros.models.flow.noise import fresh
from vla_accel_ros.models.micro_requests import DENOISE
from vla_accel_ros.sim.controller import ArmControllers
from vla_accel_ros.sim.robot import SimRobot
from vla_accel_ros.sim.tasks import Task, tasks
from vla_accel_ros.tools.demo_policy.recipe import CAMERAS
from vla_accel_ros.types import Chunk, Observation

FRAME_S = 1 / 30
JOINING = 3
"""Frames by which a chunk arrives before the last one ends: the committed part, and one action."""
CONDITIONS = ("normal", "shuffled", "blank", "still")


class Event(Protocol):
    """Something that happens once in an episode, from which on its scoring starts anew."""

    def frame(self, seed: int) -> int:
        """Return the camera frame at which it happens."""

    def happen(self, robot: SimRobot, seed: int) -> Task:
        """Change the scene; return the task from then on."""


def other_blocks(task: Task) -> list[Task]:
    """Return the tasks of the same family and pad for each other block."""
    return [other for other in tasks(task.family) if other.block != task.block and other.pad == task.pad]


@dataclass(frozen=True)
class Timing:
    """In camera frames of 1/30 s: a chunk every `period`, in force `latency` after its image.

    on_demand: delay the next chunk until it is needed at the end of the last one's horizon.
    """

    period: int = 3
    latency: int = 3
    on_demand: bool = False


@dataclass(frozen=True)
class Handover:
    """How chunks follow each other: the trajectory buffer's mode, with the usual guidance in `rtc`.

    execution_horizon: actions of a chunk that `block` executes; None means all. horizon: see control.horizon.
    speed: see control.chunking.tempo.
    """

    mode: str = "blend"
    execution_horizon: int | None = None
    horizon: str = ALL
    speed: str = USUAL

    def __post_init__(self) -> None:
        Horizons(self.horizon)


@dataclass(frozen=True)
class Episode:
    """The result of one episode.

    time_s: until success, or the episode's length; counted from the event if there is one.
    jerk: RMS of the commanded arm joints at 30 Hz [rad/s^3].
    tracking: RMS distance of the arm joints from their command [rad].
    seam: RMS distance of a new chunk's arm joints from the commanded path where it takes over [rad].
    chunks_per_s: over the whole episode. horizon: mean number of actions before the next chunk was wanted.
    """

    task: str
    family: str
    seed: int
    condition: str
    success: bool
    time_s: float
    jerk: float
    answers_right: int
    answers_asked: int
    tracking: float
    seam: float
    chunks_per_s: float = 0.0
    horizon: float = 0.0


class Session:
    """An engine and a robot that play episodes."""

    def __init__(
        self,
        engine: Engine,
        robot: SimRobot,
        contract: Contract,
        timing: Timing = Timing(),
        handover: Handover = Handover(),
    ) -> None:
        self.engine, self.robot, self.contract = engine, robot, contract
        self.timing, self.handover = timing, handover
        self.limits = JointLimits.of(contract.joints)

    def play(
        self,
        task: Task,
        seed: int,
        condition: str = "normal",
        ask_every: int | None = 15,
        event: Event | None = None,
    ) -> Episode:
        """Run one episode to success or its time limit, counted from the event if there is one.

        ask_every: frames between two questions; None, or a policy without answers, asks nothing.
        """
        ask_every = ask_every if self.engine.policy.chain.answers else None
        robot, frames = self.robot, round(task.time_limit_s / FRAME_S)
        robot.reset(task, seed)
        instruction = told(task, seed, condition)
        arm = _Arm(self)
        thinker = _Thinker(self, seed)
        event_frame = 0 if event is None else event.frame(seed)
        right, questions = 0, 0
        for frame in range(event_frame + frames):
            now_ns = _ns(frame)
            if event is not None and frame == event_frame:
                task = event.happen(robot, seed)
                instruction = told(task, seed, condition)
            for chunk in thinker.done(frame):
                arm.follow(chunk, now_ns)
            if condition != "still" and thinker.ready(frame, arm.rest_ns):
                observation = self.observe(instruction, now_ns, blank=condition == "blank")
                with self.engine.observe(observation) as prefix:
                    thinker.think(prefix, frame)
                    if ask_every is not None and frame >= questions * ask_every:
                        questions += 1
                        right += "".join(self.engine.ask(prefix)).strip() == robot.truth().answer
            arm.move(frame)
            if robot.truth().success and task.family != "follow" and frame >= event_frame:
                break
        return Episode(
            task=task.instruction,
            family=task.family,
            seed=seed,
            condition=condition,
            success=robot.truth().success,
            time_s=(frame + 1 - event_frame) * FRAME_S,
            jerk=arm.jerk(),
            answers_right=right,
            answers_asked=questions,
            tracking=arm.tracking(),
            seam=arm.seam(),
            chunks_per_s=len(thinker.horizons) / ((frame + 1) * FRAME_S),
            horizon=float(np.mean(thinker.horizons)) if thinker.horizons else 0.0,
        )

    def observe(self, instruction: str, now_ns: int, blank: bool = False) -> Observation:
        """Return the robot's present observation. blank: with grey images."""
        images = {image: self.robot.render(camera) for image, camera in CAMERAS.items()}
        if blank:
            images = {image: np.full_like(pixels, 128) for image, pixels in images.items()}
        state = self.contract.to_policy(self.robot.state()).astype(np.float32)
        return Observation(images, state, instruction, now_ns)


class _Thinker:
    """Computes chunks that take effect `latency` frames after their observation, with noise from the seed
    alone.

    With a period below the latency several chunks are pending at once, like staggered chunks. `horizons`: for
    each chunk, the actions until the next was wanted.
    """

    def __init__(self, session: Session, seed: int) -> None:
        self._session, self._seed = session, seed
        self._next, self._made, self._now_ns = 0, 0, 0
        self._pending: list[tuple[int, Request]] = []
        self._horizons, self.horizons = Horizons(session.handover.horizon), list[int]()
        guided = session.handover.mode == "rtc"
        chunking = RealTimeChunking(session.engine, lambda: self._now_ns, RtcSettings())
        self._chunking = chunking if guided else None

    def ready(self, frame: int, rest_ns: int) -> bool:
        """Return whether the next observation is due. rest_ns: when the arm comes to rest."""
        if self._session.handover.mode == "block":
            return not self._pending and _ns(frame) >= rest_ns
        return frame >= self._next

    def think(self, prefix: Prefix, frame: int) -> None:
        """Compute a chunk."""
        timing, scheduler = self._session.timing, self._session.engine.scheduler
        begin = None if self._chunking is None else self._chunking.begin
        request = Request(Act(noise=self._noise(), on_begin=begin), prefix.robot, prefix)
        scheduler.wait(scheduler.submit(request))
        chunk = cast(Chunk, request.result)
        horizon = self._horizons.of(chunk, prefix.instruction)
        self.horizons.append(horizon.wanted)
        request.result = limited(chunk, horizon)
        ahead = self.horizons[-1] - timing.latency - JOINING if timing.on_demand else 0
        self._next, self._made = frame + max(timing.period, ahead), self._made + 1
        self._pending.append((frame + timing.latency, request))

    def done(self, frame: int) -> list[Chunk]:
        """Return the chunks that have become due by this frame."""
        self._now_ns = _ns(frame)
        done = [request for due, request in self._pending if due <= frame]
        self._pending = self._pending[len(done) :]
        if self._chunking is not None:
            for request in done:
                self._chunking.made(request)
        return [cast(Chunk, request.result) for request in done]

    def _noise(self) -> np.ndarray | None:
        """Return the next chunk's initial noise, float32 [H, A]; None if the policy takes none."""
        policy = self._session.engine.policy
        if policy.chain.acts != DENOISE:
            return None
        return fresh(self._seed, self._made, (policy.config.horizon, policy.config.action_dim))


class _Arm:
    """The trajectory buffer, the controllers and the arm, and a record of its motion at 30 Hz."""

    def __init__(self, session: Session) -> None:
        handover, contract, self._robot = session.handover, session.contract, session.robot
        options = Options(handover.mode, speed=handover.speed)
        self._buffer = TrajectoryBuffer(
            contract.joint_names,
            session.limits,
            handover.mode,
            execution_horizon=handover.execution_horizon,
            tempo=options.make_tempo(contract),
        )
        self._buffer.reset(self._robot.state())
        self._controllers = ArmControllers()
        self._controllers.start(self._robot.state())
        self._commanded: list[np.ndarray] = []
        self._measured: list[np.ndarray] = []
        self._seams: list[np.ndarray] = []
        self._sent: Trajectory | None = None

    @property
    def rest_ns(self) -> int:
        """When the arm comes to rest."""
        return 0 if self._sent is None else self._sent.end_ns

    def follow(self, chunk: Chunk, now_ns: int) -> None:
        trajectory = self._buffer.update(chunk, now_ns)
        if trajectory is None:
            return
        self._controllers.accept(trajectory, now_ns)
        if self._sent is not None and now_ns < self._sent.end_ns:
            committed_ns = self._buffer.committed_until_ns
            assert committed_ns is not None
            first = next((i for i in range(chunk.horizon) if chunk.due_ns(i) >= committed_ns + _ns(1)), -1)
            old, _ = self._sent.sample(chunk.due_ns(first))
            self._seams.append(chunk.actions[first, :5] - old[:5])
        self._sent = trajectory

    def move(self, frame: int) -> None:
        self._robot.advance((frame + 1) * FRAME_S, self._controllers)
        if (tempo := self._buffer.tempo) is not None:
            tempo.measure(self._robot.state(), self._robot.target, self._robot.target_velocity)
        self._commanded.append(self._robot.target[:5])
        self._measured.append(self._robot.state()[:5])

    def jerk(self) -> float:
        return _rms(np.diff(np.array(self._commanded), n=3, axis=0) / FRAME_S**3)

    def tracking(self) -> float:
        return _rms(np.array(self._commanded) - np.array(self._measured))

    def seam(self) -> float:
        return _rms(np.array(self._seams))


def told(task: Task, seed: int, condition: str) -> str:
    """Return the instruction given: the task's own, or under `shuffled` one of the same family for another
    block."""
    if condition != "shuffled":
        return task.instruction
    choices = other_blocks(task)
    return choices[np.random.default_rng(seed).integers(len(choices))].instruction


def _ns(frame: int) -> int:
    return round(frame * FRAME_S * 1e9)


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.square(values).mean())) if values.size else 0.0
