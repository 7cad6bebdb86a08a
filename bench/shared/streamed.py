"""Measures a stream: a camera and joints that change at their rates, and when results came."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import numpy as np

from shared.timing import synchronize
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.request import ACT, DECODE, OBSERVE, WHOLE, Act, MicroBatch, Pace, Request, Waits
from vla_accel_ros.engine.streaming.ports import Ports
from vla_accel_ros.engine.streaming.streaming import Streaming
from vla_accel_ros.types import Chunk, Observation

ANSWER_TOKENS = 16
DEADLINES_S = {"action": 0.1}
"""Where it is not one period."""


class Camera:
    """Frames in host memory, `rate_hz` a second, of which the newest can be taken; an
    engine.streaming.loop.Awaited. stamp_ns: when the frame was there, on time.monotonic_ns."""

    lead_s = 0.0

    def __init__(self, frames: Sequence[Observation], rate_hz: float) -> None:
        self._frames, self._period_s = frames, 1.0 / rate_hz
        self._came, self._stopping = threading.Condition(), False
        self._newest: Observation | None = None
        self.number, self.taken = 0, 0
        self._thread = threading.Thread(target=self._run, name="camera", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._thread.join()

    def take(self) -> Observation | None:
        """The newest frame, or None if it was taken."""
        with self._came:
            newest, self._newest = self._newest, None
            self.taken += newest is not None
        return newest

    def wait(self, patience_s: float, given_up: Callable[[], bool]) -> object:
        with self._came:
            return self._came.wait_for(lambda: self._newest is not None or given_up(), patience_s)

    def age_s(self) -> float:
        newest = self._newest
        return 0.0 if newest is None else time.monotonic() - newest.stamp_ns * 1e-9

    def wake(self) -> None:
        with self._came:
            self._came.notify_all()

    def _run(self) -> None:
        due_s = time.monotonic()
        while not self._stopping:
            with self._came:
                frame = self._frames[self.number % len(self._frames)]
                self._newest = replace(frame, stamp_ns=time.monotonic_ns())
                self.number += 1
                self._came.notify_all()
            due_s = max(due_s + self._period_s, time.monotonic() - self._period_s)
            time.sleep(max(0.0, due_s - time.monotonic()))


class Streamed:
    """A stream that runs during the block. rates: Hz of vision, action and language; joints_hz: of newer
    joints, from another process. deadline_s: of each; 0 = as in the node inference.

    joints_s, came_s: when joints and chunks came; ages_s: of the joints with which chunks began; first_s:
    from an image to its first chunk. dropped: frames that were never taken. All for the window from `begin`
    to `end`.
    """

    def __init__(
        self,
        engine: Engine,
        camera: Camera,
        joints_hz: float,
        rates: Mapping[str, float],
        deadline_s: float = 0.0,
    ) -> None:
        self._engine, self._camera, self._joints_hz = engine, camera, joints_hz
        self._joints = np.zeros(engine.policy.joints, np.float32), 0
        self._sensing = threading.Thread(target=self._sense, name="joints", daemon=True)
        ports = Ports(
            camera.take,
            lambda: None,
            lambda: self._joints,
            self._on_chunk,
            lambda text: None,
            self._on_error,
            frames=camera,
        )
        paces = {
            name: Pace(rate_hz, deadline_s or DEADLINES_S.get(name, 0.0)) for name, rate_hz in rates.items()
        }
        self.stream = Streaming(
            engine, ports, paces["vision"], paces["action"], paces["language"], ANSWER_TOKENS
        )
        self.joints_s: list[float] = []
        self.came_s: list[float] = []
        self.ages_s: list[float] = []
        self.first_s: list[float] = []
        self._newest = -1
        self._error: Exception | None = None
        self._done, self._run, self._lock = Counter[str](), engine.runner.run, threading.Lock()
        self._before, self._began_s, self._frames = Counter[str](), 0.0, (0, 0)
        self._lately: deque[Request] = deque(maxlen=64)
        self.dropped = 0

    def __enter__(self) -> Streamed:
        self._engine.runner.run = self._counted  # type: ignore[method-assign]
        self._camera.start()
        self.stream.start()
        command = [sys.executable, str(Path(__file__).with_name("joints.py")), str(self._joints_hz)]
        self._driver = subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0)
        self._sensing.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._driver.terminate()
        self._sensing.join()
        self._driver.wait()
        self.stream.stop()
        self._camera.stop()
        self._engine.runner.run = self._run  # type: ignore[method-assign]
        if kind is None and self._error is not None:
            raise self._error

    def begin(self) -> None:
        """Begin the window."""
        for times_s in (self.joints_s, self.came_s, self.ages_s, self.first_s):
            times_s.clear()
        with self._lock:
            self._before, self._began_s = self._done.copy(), time.monotonic()
        self._frames = self._camera.number, self._camera.taken

    def end(self) -> tuple[dict[str, int], float]:
        """What was finished since `begin`: frames, chunks, first_chunks (whole ones), tokens, and forwards,
        which make a token of every answer; and the number of seconds."""
        names = ("frames", "chunks", "first_chunks", "tokens", "forwards")
        with self._lock:
            done, seconds = self._done - self._before, time.monotonic() - self._began_s
        frames_sent, frames_taken = (
            self._camera.number - self._frames[0],
            self._camera.taken - self._frames[1],
        )
        self.dropped = max(0, frames_sent - frames_taken - 1)  # the last may still be taken
        return {name: done[name] for name in names}, seconds

    def _counted(self, batch: MicroBatch) -> Callable[[], None] | None:
        wait = self._run(batch)
        # Of a token in groups of layers the last one counts.
        token = batch.stage == DECODE and not any(request.partial for request in batch.requests)
        if wait is None:
            self._count(batch, token)
            return None

        def count_then() -> None:
            wait()
            self._count(batch, token)

        return count_then

    def _count(self, batch: MicroBatch, token: bool) -> None:
        kind = batch.requests[-1].kind
        names = {OBSERVE: "frames", ACT: "chunks", WHOLE: "first_chunks"}
        new = [request for request in batch.requests if request.finished and request.error is None]
        with self._lock:
            if kind == OBSERVE:
                # Of a frame in groups several may be computed when the last one was launched: it counts once.
                new = [request for request in new if request not in self._lately]
                self._lately.extend(new)
            finished = len(new)
            if kind in names:
                self._done[names[kind]] += finished
                sensed = [request for request in new if request.want == ACT and request.act.sensed_ns]
                self.ages_s += [request.begun_s - request.act.sensed_ns * 1e-9 for request in sensed]
            elif token:
                self._done["tokens"] += len(batch.requests)
                self._done["forwards"] += 1

    def _sense(self) -> None:
        assert self._driver.stdout is not None
        while self._driver.stdout.read(1):
            now_ns = time.monotonic_ns()
            self.joints_s.append(now_ns * 1e-9)
            self._joints = self._joints[0], now_ns
            self.stream.joints_came()

    def _on_chunk(self, chunk: Chunk, took_s: float) -> None:
        now_s = time.monotonic()
        self.came_s.append(now_s)
        if chunk.kv_version != self._newest:
            self._newest = chunk.kv_version
            self.first_s.append(now_s - chunk.stamp_ns * 1e-9)

    def _on_error(self, name: str, error: Exception) -> None:
        self._error = error


def costs_alone(engine: Engine, frame: Observation, runs: int) -> dict[str, float]:
    """Seconds of a frame, of a chunk in full seats, of a whole chunk and of a forward of one answer, each
    alone, in lanes with threads."""
    engine.scheduler.start()
    try:
        return _costs(engine, frame, runs)
    finally:
        engine.scheduler.stop()


def _costs(engine: Engine, frame: Observation, runs: int) -> dict[str, float]:
    device, scheduler = engine.policy.device, engine.scheduler

    def timed(work: Callable[[], object], number: int) -> float:
        work()
        synchronize(device)
        began_s = time.perf_counter()
        for _ in range(number):
            work()
        synchronize(device)
        return (time.perf_counter() - began_s) / number

    def seats() -> None:
        requests = [
            Request(Act(), prefix=prefix, waits=Waits.ROOM) for _ in range(8 * engine.config.staggered)
        ]
        for request in requests:
            scheduler.submit(request)
        for request in requests:
            scheduler.wait(request)

    def text() -> None:
        if engine.policy.chain.answers:
            with engine.ask(prefix, max_tokens=ANSWER_TOKENS) as answer:
                list(answer)

    seen_s = timed(lambda: engine.observe(frame).release(), runs)
    with engine.observe(frame) as prefix:
        whole_s = timed(lambda: engine.act(prefix, steps=engine.config.steps), runs)
        seat_s = timed(seats, max(1, runs // 20)) / (8 * engine.config.staggered)
        forward_s = timed(text, max(1, runs // 10)) / ANSWER_TOKENS
    return {"frames": seen_s, "chunks": seat_s, "first_chunks": whole_s, "forwards": forward_s}
