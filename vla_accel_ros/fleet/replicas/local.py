"""A replica in this process: one engine that serves many robots.

Each request puts its frame, and then its action, into the engine's queue. Frames are prefilled one by one as
they arrive, while chunks of different robots share denoise steps, each at its own noise level, if the engine
has seats (`staggered`). Threads beside the engine's lanes decode the images, as data that is never executed.
An error fails only its own request.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.kv.prefixes import Prefix
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.engine.request import Act, Ask, Observe, Request, Waits
from vla_accel_ros.engine.robots import Embodiment
from vla_accel_ros.engine.rules.chunks import joins_of
from vla_accel_ros.engine.scheduler import Stream
from vla_accel_ros.engine.session import Session
from vla_accel_ros.fleet.protocol import EncodedObservation, RobotDescription, Round
from vla_accel_ros.fleet.replicas.decoding import decoded
from vla_accel_ros.fleet.replicas.replica import FRAMES, MEASURED, SERVE, ReplicaLost, Served
from vla_accel_ros.models.micro_requests import DENOISE
from vla_accel_ros.types import Chunk, Observation

if TYPE_CHECKING:
    from vla_accel_ros.contract.contract import Contract

PRIORITY = 1
"""Priority of a fleet's requests in the engine's queue."""
_STREAM = "fleet"

Embody = Callable[[RobotDescription], "tuple[Contract, Embodiment]"]
Told = Callable[[RobotDescription, "Contract"], Session]


def at_once(config: EngineConfig) -> int:
    """How many requests keep an engine's seats full: those of the seats, and those whose images are decoded
    and frames prefilled meanwhile, 1 or twice the number of frames or chunks that begin together."""
    pace = max(config.frames_together, joins_of(config.staggered, config.steps))
    return max(1, config.staggered) + (1 if pace == 1 else 2 * pace)


@dataclass(eq=False)
class _Job:
    """A request in progress. running: its frame or action request while the engine has it. prefix: of its
    frame. asks: it is a question, whose action is a text answer."""

    round: Round
    future: Future[Any]
    began_s: float
    asks: bool = False
    running: Request | None = None
    prefix: Prefix | None = None
    cancelled: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class LocalReplica:
    """An Engine as a fleet.replicas.replica.Replica. Safe to use from several threads.

    embody: returns the contract and embodiment (Load.embodiment) of a description; raises ValueError or
    OSError if they do not fit. session: returns the Session of a robot that is ready. ahead: requests
    accepted before a seat is free; None: see at_once.
    decoders: number of decoding threads. clock: monotonic seconds. updates: denoise steps of a chunk, 0 for a
    token policy.
    """

    def __init__(
        self,
        engine: Engine,
        embody: Embody,
        name: str = "local",
        *,
        session: Told | None = None,
        ahead: int | None = None,
        decoders: int = 2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        config = engine.config
        self.limit = at_once(config) if ahead is None else max(1, config.staggered) + ahead
        self.name, self.profile = name, Profile()
        self.engine, self._embody, self._clock, self.network_s = engine, embody, clock, 0.0
        self.updates = config.steps if engine.policy.chain.acts == DENOISE else 0
        self.answers = config.answers if engine.policy.chain.answers else 0
        self.config = config if self.updates else None
        self._session = session
        self._contracts: dict[str, Contract] = {}
        self._jobs: dict[Future[Any], _Job] = {}
        self._lock = threading.Lock()
        self._describing = ThreadPoolExecutor(1, "describe")  # one thread, so that forget follows describe
        self._decoding = ThreadPoolExecutor(decoders, "decode")
        engine.scheduler.join(_STREAM, Stream())

    def close(self) -> None:
        """Cancel all requests and end the threads; the engine can then be used by others."""
        for future in tuple(self._jobs):
            self.cancel(future)
        self._decoding.shutdown(cancel_futures=True)
        self._describing.shutdown(cancel_futures=True)
        scheduler = self.engine.scheduler
        scheduler.leave(_STREAM)
        if not scheduler.streams:  # of a measurement, too
            scheduler.cancel(*scheduler.requests)
        for job in tuple(self._jobs.values()):  # whose images no thread began to decode
            self._end(job)
        for robot in tuple(self._contracts):
            self._remove(robot)

    def room(self) -> int:
        with self._lock:
            return self.limit - sum(not job.asks for job in self._jobs.values())

    @property
    def robots(self) -> tuple[str, ...]:
        """Robots that the replica is ready for."""
        return tuple(self._contracts)

    def contract(self, robot: str) -> Contract | None:
        """Return the contract of a robot that the replica is ready for, None for any other."""
        return self._contracts.get(robot)

    def describe(self, robot: RobotDescription) -> Future[Session | None]:
        return self._describing.submit(self._add, robot)

    def forget(self, robot: str) -> None:
        for future, job in tuple(self._jobs.items()):
            if job.round.robot == robot:
                self.cancel(future)
        with suppress(RuntimeError):  # the replica is closed
            self._describing.submit(self._remove, robot)

    def serve(self, round: Round, observation: EncodedObservation) -> Future[Served]:
        future: Future[Served] = Future()
        self._begin(_Job(round, future, self._clock()), observation)
        return future

    def ask(self, round: Round, observation: EncodedObservation) -> Future[str]:
        future: Future[str] = Future()
        self._begin(_Job(round, future, self._clock(), asks=True), observation)
        return future

    def cancel(self, served: Future[Any]) -> None:
        job = self._jobs.get(served)
        if job is None:
            return
        with job.lock:
            job.cancelled, running = True, job.running
        if running is not None:
            self.engine.scheduler.cancel(running)

    def measure(self, observation: Observation) -> Profile:
        """Measure with 1, 2, 4, ... and `most` requests always waiting, and with 1, 2, 4, ... frames up to
        frames_together, and store the results in the profile. Its SERVE entries are batch times the interval
        between chunks, its FRAMES entries the seconds of all frames together. Needs an engine that nobody
        else uses, and an observation of a robot that it knows."""
        for batch in sorted({*(1 << power for power in range(self.limit.bit_length())), self.limit}):
            self.profile.note(SERVE, batch, batch * self._interval_s(observation, batch))
        for power in range(self.engine.config.frames_together.bit_length() if self.updates else 0):
            frames = 1 << power
            self.profile.note(FRAMES, frames, frames * self._frame_s(observation, frames))
        return self.profile

    def _interval_s(self, observation: Observation, batch: int) -> float:
        """Return the steady time from one chunk to the next, with `batch` requests always waiting."""
        free, ends_s = threading.Semaphore(batch), list[float]()

        def ended(future: Future[Served]) -> None:
            ends_s.append(self._clock())
            free.release()

        jobs = []
        for number in range(batch * (MEASURED + 2)):
            free.acquire()
            job = _Job(Round("", observation.robot, 0, number), Future(), self._clock())
            job.future.add_done_callback(ended)
            jobs.append(job)
            self._decoding.submit(self._submit, job, self._frame(job, observation))
        for job in jobs:
            job.future.result()
        for _ in range(batch):  # a result may be read before its callback was called
            free.acquire()
        begin, end = batch, batch * (MEASURED + 1)  # the engine is neither filling nor emptying
        return (ends_s[end] - ends_s[begin]) / (end - begin)

    def _frame_s(self, observation: Observation, frames: int) -> float:
        """Return the steady time from one frame to the next, with `frames` always waiting and no chunks. A
        prefix may be published before the device has computed it, so the difference of two runs that each end
        with a chunk is used."""
        long_s, short_s = (self._frames_s(observation, frames, groups) for groups in (MEASURED + 1, 1))
        return max(1e-6, (long_s - short_s) / (MEASURED * frames))

    def _frames_s(self, observation: Observation, frames: int, groups: int) -> float:
        """Return the seconds of so many groups of frames, and of one chunk from the last frame."""
        prefixes, finished, began_s = self.engine.runner.prefixes, Future[None](), self._clock()
        remaining = [groups * frames, groups * frames]  # to be submitted, to be finished

        def submit() -> None:
            remaining[0] -= 1
            frame = Request(Observe(observation), observation.robot, waits=Waits.ROOM, on_progress=seen)
            self.engine.scheduler.submit(frame)

        def seen(frame: Request) -> None:
            if not frame.finished:
                return
            prefixes.remove(frame.robot)
            if not isinstance(frame.result, Prefix):
                finished.set_exception(frame.error or RuntimeError("a frame was not computed"))
                return
            remaining[1] -= 1
            if remaining[0]:
                submit()
            if remaining[1]:
                frame.result.release()
                return
            job = _Job(Round("", frame.robot, 0, 0), Future(), began_s, prefix=frame.result)
            job.future.add_done_callback(lambda _: finished.set_result(None))
            self._submit(job, self._action(job, frame.robot))

        for _ in range(frames):
            submit()
        finished.result()
        return self._clock() - began_s

    def _begin(self, job: _Job, observation: EncodedObservation) -> None:
        with self._lock:
            self._jobs[job.future] = job
        try:
            self._decoding.submit(self._see, job, observation)
        except RuntimeError as error:
            self._end(job, error=error)

    def _add(self, description: RobotDescription) -> Session | None:
        contract, embodiment = self._embody(description)
        self.engine.runner.robots.add(description.robot, embodiment)
        self._contracts[description.robot] = contract
        return None if self._session is None else self._session(description, contract)

    def _remove(self, robot: str) -> None:
        self._contracts.pop(robot, None)
        self.engine.runner.remove(robot)

    def _see(self, job: _Job, encoded: EncodedObservation) -> None:
        """Decode the observation and submit its frame. Runs in a decoding thread."""
        try:
            if job.cancelled:
                self._end(job)
                return
            contract = self._contracts.get(job.round.robot)
            if contract is None:
                raise ReplicaLost(f"{self.name} does not know the robot {job.round.robot}; describe it first")
            self._submit(job, self._frame(job, decoded(encoded, contract, job.round.robot)))
        except Exception as error:
            self._end(job, error=error)

    def _frame(self, job: _Job, observation: Observation) -> Request:
        priority = PRIORITY - job.asks  # a question comes after all actions
        return Request(
            Observe(observation),
            observation.robot,
            priority=priority,
            waits=Waits.ROOM,
            on_progress=partial(self._observed, job),
        )

    def _submit(self, job: _Job, request: Request) -> None:
        """Submit the next request of a job to the engine, unless the job was cancelled."""
        with job.lock:
            job.running = None if job.cancelled else request
            if not job.cancelled:
                self.engine.scheduler.submit(request)
        if job.running is None:
            self._end(job)

    def _observed(self, job: _Job, request: Request) -> None:
        """Submit the action of a frame that is finished, or end the job if the frame failed. Runs in the
        engine's lane."""
        if not request.finished:
            return
        prefixes = self.engine.runner.prefixes
        try:
            prefixes.remove(request.robot)  # each job holds its own prefix
            if request.cancelled or request.error is not None:
                self._end(job, error=request.error)
                return
            job.prefix = cast(Prefix, request.result)
            self._submit(job, self._action(job, request.robot))
        except Exception as error:
            self._end(job, error=error)

    def _action(self, job: _Job, robot: str) -> Request:
        """Return the job's second request: a chunk, whose noise seed is the round's request_id, or a text
        answer."""
        wish: Ask | Act = Act(noise=job.round.request_id if self.updates else None)
        if job.asks:
            wish = Ask(max_tokens=self.engine.config.answer_tokens)
        return Request(
            wish,
            robot,
            job.prefix,
            priority=PRIORITY,
            waits=Waits.ROOM,
            on_progress=partial(self._acted, job),
        )

    def _acted(self, job: _Job, request: Request) -> None:
        """End a job whose chunk or answer is finished, failed or cancelled. Runs in the engine's lane."""
        if request.finished:
            done = not request.cancelled and request.error is None
            result = request.result if done else None
            self._end(job, str(result or "") if done and job.asks else result, request.error)

    def _end(self, job: _Job, result: object = None, error: Exception | None = None) -> None:
        """Release the job's prefix and complete its future. A cancelled job does not fail: its robot may be
        unknown by now."""
        with self._lock:
            self._jobs.pop(job.future, None)
        if job.prefix is not None:
            job.prefix.release()
        if job.future.done():
            return
        if error is not None and not job.cancelled:
            job.future.set_exception(error)
        elif isinstance(result, Chunk):
            chunk = replace(result, request_id=job.round.request_id)
            job.future.set_result(Served(job.round, chunk, self._clock() - job.began_s))
        elif isinstance(result, str):
            job.future.set_result(result)
        else:
            job.future.cancel()
