"""The cost of recording events in the timeline, and of reading it.

    python bench/timeline.py

All times are CPU time, so that other work of the machine does not count. "events" are single writes into the
ring of a process [us]: p50 and p99 over batches of 100; "threads" is the same with four threads that do
nothing else. "hooks" is what a node or a lane pays besides its work, including reading the clock. "page" is
the time of one answer of ~/timeline by a node whose ring is full [ms], "memory_mb" the size of that ring.
With a GPU, "gpu_us" is the pair of events around a micro-batch. "load" is how many cores were busy before.
Writes bench/results/timeline.json.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from sensor_msgs.msg import Image

from vla_accel_msgs.msg import ActionChunk
from vla_accel_msgs.srv import GetTimeline
from vla_accel_ros.engine.lanes.times import GpuTimes, note
from vla_accel_ros.engine.request import ACT, DENOISE, MicroBatch, Request
from vla_accel_ros.nodes.timeline import NodeTimeline, page_to_response
from vla_accel_ros.timeline import MOST, TIMELINE, Timeline
from vla_accel_ros.tools.provenance import provenance

RESULT = Path(__file__).parent / "results" / "timeline.json"
BATCH, BATCHES, THREADS = 100, 2000, 4
STAMP_NS = 1_795_371_185_750_588_657


def quantiles(samples: list[float]) -> dict[str, float]:
    """p50 and p99."""
    return {f"p{q}": round(float(np.percentile(samples, q)), 3) for q in (50, 99)}


def timed_us(call: Callable[[], object], batches: int = BATCHES) -> dict[str, float]:
    """CPU time of a call, including the loop around it."""
    samples = []
    for _ in range(batches):
        begin = time.thread_time_ns()
        for _ in range(BATCH):
            call()
        samples.append((time.thread_time_ns() - begin) * 1e-3 / BATCH)
    return quantiles(samples)


def threads_us(call: Callable[[], object]) -> float:
    """CPU time of a call while several threads do nothing else."""
    used, begin = [], threading.Barrier(THREADS)

    def write() -> None:
        begin.wait()
        before = time.thread_time_ns()
        for _ in range(BATCH * BATCHES // THREADS):
            call()
        used.append((time.thread_time_ns() - before) * 1e-3 / (BATCH * BATCHES // THREADS))

    writers = [threading.Thread(target=write) for _ in range(THREADS)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    return round(float(np.mean(used)), 3)


FRAME: Any = SimpleNamespace(stamp_ns=STAMP_NS, version=7)


class Nowhere:
    """A publisher, and a node without a graph."""

    topic_name, is_activated = "/action_chunk", True

    def publish(self, message: object) -> None:
        """Does nothing."""

    def create_service(self, *_: object) -> None:
        """Returns None."""

    def resolve_topic_name(self, topic: str) -> str:
        """Returns the name unchanged."""
        return f"/{topic}"


def hooks() -> dict[str, dict[str, float]]:
    """What nodes and lanes pay for recording."""
    told: Any = NodeTimeline(Nowhere())
    image = bytes([0, 1, 0, 0, *bytes(100)])
    heard, published = (
        told.heard(lambda message: None, Image, "image_raw"),
        told.published(Nowhere(), ActionChunk),
    )
    chunk = ActionChunk()
    request = Request(ACT, prefix=FRAME)
    batch = MicroBatch(DENOISE, (request,))
    return {
        "callback of an image": timed_us(lambda: heard(image)),
        "publish of a chunk": timed_us(lambda: published.publish(chunk)),
        "micro-batch": timed_us(lambda: note("main", batch, 1.0, 2.0)),
    }


def page_ms() -> dict[str, float]:
    """Milliseconds of a service answer from a full ring."""
    timeline = Timeline()
    for _ in range(MOST):
        timeline.instant("loop vision", "run", (STAMP_NS,))
    samples, position = [], 0
    for _ in range(50):
        begin = time.thread_time_ns()
        page = timeline.page(0, position)
        page_to_response(page, GetTimeline.Response())
        samples.append((time.thread_time_ns() - begin) * 1e-6)
        position = page.next
    return quantiles(samples)


def memory_mb() -> float:
    """MB of a full ring."""
    tracemalloc.start()
    timeline = Timeline()
    for _ in range(MOST):
        timeline.span("lane main", "act.denoise", TIMELINE.now_ns(), flows=(TIMELINE.now_ns(),))
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return round(used * 1e-6, 1)


def gpu_us() -> dict[str, float] | None:
    """The pair of events, and what is kept of a micro-batch with it; nothing else is in the stream."""
    if not torch.cuda.is_available():
        return None
    times, batch = GpuTimes("bench", torch.device("cuda")), MicroBatch(DENOISE, (Request(ACT, prefix=FRAME),))

    def around_nothing() -> None:
        with times(batch):
            pass

    timed_us(around_nothing, 20)  # events are made when they are first recorded
    torch.cuda.synchronize()
    return timed_us(around_nothing, 50)


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    load, timeline = os.getloadavg()[0], Timeline()
    begin_ns = timeline.now_ns()

    def span() -> None:
        timeline.span("lane main", "act.denoise", begin_ns, None, (STAMP_NS,), "act 3 of frame 7")

    events = {"span": timed_us(span), "instant": timed_us(lambda: timeline.instant("loop vision", "run"))}
    result: dict[str, Any] = {
        "load": load,
        "kept": MOST,
        "events": events,
        "threads": {"count": THREADS, "cpu_us": threads_us(span)},
        "hooks": hooks(),
        "page_ms": page_ms(),
        "memory_mb": memory_mb(),
        "gpu_us": gpu_us(),
        **provenance(),
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(
        json.dumps({name: result[name] for name in result if name not in ("machine", "versions")}, indent=1)
    )


if __name__ == "__main__":
    main()
