"""A GPU's multiprocessors divided between actions and frames: the times with each split, and the cost of a
switch.

    python bench/partition.py [--kind pi05] [--splits none 32:100 64:68 88:44 100:32] [--staggered N]
        [--seconds S] [--views V]

Full-size random weights, one engine for each split (actions : the rest; none: two streams that share the
GPU). Timed by the host, from submission until the device is done: a frame (upload, encode and prefill), a
step of all seats and a whole chunk, each alone; then steps without a break beside frames that come 30 times a
second. Last, steps that alternate between two captured splits against steps in either one: the cost of a
switch, which must be below 0.175 ms; and what partition "auto" chooses for two rates of actions. --small runs
without splits.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from run import Bench, Given, Row, main
from shared.models import KINDS, config_of
from shared.policies import random_policy
from shared.timing import summary, synchronize
from vla_accel_ros.engine.actors.flow import FlowActor
from vla_accel_ros.engine.config import ACTIONS_APART, NO_PARTITION
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.stages.stages import Stages
from vla_accel_ros.models.policy import Policy

STEPS = 10
VISION_HZ = 30.0
SPLITS = (NO_PARTITION, "32:100", "64:68", "88:44", "100:32")
RATES_HZ = (60.0, 500.0)
"""Rates of actions for which "auto" chooses."""
Run = Callable[[], object]


def options(add: Callable[..., Any]) -> None:
    add("--kind", choices=tuple(KINDS), default="pi05")
    add("--splits", nargs="+", default=SPLITS, help="none or A:B (default: %(default)s)")
    add("--staggered", type=int, default=STEPS, help="chunks at once (default: %(default)s)")
    add("--seconds", type=float, default=4.0, help="of frames beside steps (default: %(default)s)")
    add("--runs", type=int, default=60, help="of each stage alone (default: %(default)s)")
    add("--views", type=int, choices=(1, 2, 3), default=2, help="number of cameras (default: %(default)s)")
    add("--prompt", type=int, default=20, help="tokens of the prompt (default: %(default)s)")


def measure(given: Given) -> Iterator[Row | None]:
    """A row for each split, the cost of a switch, and the choice of "auto"."""
    policy = random_policy(config_of(given.kind, given.small), given.device, given.dtype)
    for word in (NO_PARTITION,) if given.small else given.splits:
        try:
            engine = make(policy, given, partition=word)
        except ValueError as error:  # the device has other numbers
            print(f"{word:10}{error}")
            continue
        yield {"asked": word, **figures(engine, given)}
        del engine
        gc.collect()
    if not given.small:
        given.document["switch"], given.document["auto"] = switching(policy, given)
        yield None


def make(policy: Policy, arguments: Given, **options: Any) -> Engine:
    """An engine of two lanes, prepared."""
    count = arguments.staggered
    engine = Engine(
        policy, fast=True, steps=STEPS, staggered=count, lanes=ACTIONS_APART, slots=count + 6, **options
    )
    engine.prepare([arguments.views], [arguments.prompt])
    return engine


class Stations:
    """The engine's work, called by hand: each in its lane, until the device is done."""

    def __init__(self, engine: Engine, views: int, prompt: int) -> None:
        runner, policy = engine.runner, engine.policy
        assert isinstance(runner.stages, Stages) and isinstance(runner.actor, FlowActor)
        self._stages, self._actor, config = runner.stages, runner.actor, runner.stages.model.config
        self._lanes = {lane.name: lane for lane in runner.lanes}
        self._cuda, device = policy.device.type == "cuda", policy.device
        side = config.vision.image_size
        self._images = np.zeros((views, side, side, 3), np.uint8)
        self._words = torch.zeros(prompt, dtype=torch.int64)
        self._noise = torch.zeros(1, config.horizon, config.action_dim, device=device)
        self._state = torch.zeros(1, config.state_dim, device=device) if policy.chain.takes_state else None
        self._seen, self._acted = runner.pool.acquire(), runner.pool.acquire()
        self._length = self._observe(self._acted)

    def frame(self) -> None:
        self._observe(self._seen)

    def step(self, wait: bool = True) -> None:
        self._in("action", self.step_here, wait)

    def step_here(self) -> None:
        """A step in the current stream."""
        self._actor.rehearse(self._acted, self._length, STEPS)

    def chunk(self) -> None:
        buffers = [self._acted], [self._length]
        self._in("action", lambda: self._stages.act(self._noise, self._state, *buffers, STEPS))

    def _observe(self, slot: int) -> int:
        lengths: list[int] = []
        self._in(
            "vision", lambda: lengths.extend(self._stages.observe([self._images], [self._words], [slot]))
        )
        return lengths[0]

    def _in(self, lane: str, work: Run, wait: bool = True) -> None:
        with self._lanes[lane].computing():
            work()
            if self._cuda and wait:
                torch.cuda.current_stream().synchronize()


def figures(engine: Engine, arguments: Given) -> dict[str, Any]:
    """The figures of one split."""
    split = engine.runner.partitioned.split
    stations = Stations(engine, arguments.views, arguments.prompt)
    runs = 3 if arguments.small else arguments.runs
    named = {"frame": stations.frame, "step": stations.step, "chunk": stations.chunk}
    times = {name: summary(1e3 * timed(work, runs)) for name, work in named.items()}
    return {
        "split": None if split is None else asdict(split),
        "alone": times,
        "beside": beside(stations.frame, stations.step, arguments.seconds),
    }


def timed(work: Run, runs: int) -> np.ndarray:
    """Seconds [runs], after a warm-up."""
    for _ in range(3):
        work()
    times_s = np.empty(runs)
    for index in range(runs):
        began_s = time.perf_counter()
        work()
        times_s[index] = time.perf_counter() - began_s
    return times_s


def beside(frame: Run, step: Run, seconds: float) -> dict[str, Any]:
    """Steps without a break in a thread, beside frames at their rate, or as fast as possible."""
    steps, frames, ended = list[float](), list[float](), threading.Event()

    def act() -> None:
        while not ended.is_set():
            began_s = time.perf_counter()
            step()
            steps.append(time.perf_counter() - began_s)

    thread = threading.Thread(target=act)
    began_s = due_s = time.perf_counter()
    thread.start()
    try:
        while due_s < began_s + seconds:
            time.sleep(max(0.0, due_s - time.perf_counter()))
            now_s = time.perf_counter()
            frame()
            frames.append(time.perf_counter() - now_s)
            due_s = max(due_s + 1.0 / VISION_HZ, time.perf_counter())
    finally:
        ended.set()
        thread.join()
    took_s = time.perf_counter() - began_s
    return {
        "frame": summary(1e3 * np.array(frames)),
        "frames_hz": round(len(frames) / took_s, 2),
        "step": summary(1e3 * np.array(steps)),
        "steps_hz": round(len(steps) / took_s, 2),
    }


def switching(policy: Policy, arguments: Given) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The cost of switching between two captured splits, and what "auto" chooses."""
    choices: list[dict[str, Any]] = []
    for rate_hz in RATES_HZ:
        engine = make(policy, arguments, partition="auto", camera_hz=VISION_HZ, action_hz=rate_hz)
        partitioned = engine.runner.partitioned
        split = None if partitioned.split is None else str(partitioned.split)
        measured = [asdict(split_time) for split_time in partitioned.measured]
        reason = partitioned.reason
        choices.append({"action_hz": rate_hz, "split": split, "why": reason, "measured": measured})
        print(f"{rate_hz:5.0f} Hz: {reason}", flush=True)
    streams = engine.runner.partitioned.streams
    if streams is None or len(streams.splits) < 2:
        return {}, choices
    stations = Stations(engine, arguments.views, arguments.prompt)
    two = streams.splits[0], streams.splits[-1]
    count = 4 * arguments.runs
    times_ms: dict[str, float] = {}
    for one_side in two:
        streams.use(one_side)
        stations.step()
        times_ms[str(one_side)] = _each_ms(engine, lambda index: stations.step(False), count)
    streams.use(two[0])

    def to_and_fro(index: int) -> None:
        with streams.on("action"), streams.elsewhere("action", two[index % 2]):
            stations.step_here()

    times_ms["to and fro"] = _each_ms(engine, to_and_fro, count)
    split_time, other, both_sides = times_ms.values()
    # Each pair of steps goes there and back: two switches.
    figures = {"steps_ms": times_ms, "switch_ms": round(both_sides - (split_time + other) / 2, 4)}
    print(f"a switch: {figures['switch_ms']:.4f} ms ({times_ms})", flush=True)
    return figures, choices


def _each_ms(engine: Engine, work: Callable[[int], object], count: int) -> float:
    """Of `count` without waiting between two."""
    device = engine.policy.device
    for index in range(4):
        work(index)
    synchronize(device)
    began_s = time.perf_counter()
    for index in range(count):
        work(index)
    synchronize(device)
    return round(1e3 * (time.perf_counter() - began_s) / count, 5)


BENCH = Bench(
    "partition",
    measure,
    options,
    rows="splits",
    about={"steps": STEPS, "vision_hz": VISION_HZ, "seeds": "weights 0"},
    gpu=True,
    smoke="--small --seconds 0.3 --staggered 4",
)

if __name__ == "__main__":
    sys.exit(main(BENCH))
