"""The same replica in several processes at once, each on its own GPU if there are enough."""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

READY_S = 300.0


@dataclass(frozen=True)
class Work:
    """What a process does: a model of that kind, the engine's setting, robots with so many views of that
    size, for so many seconds each time that it is told to."""

    kind: str
    small: bool
    setting: str
    robots: int
    views: int
    size: tuple[int, int]
    seconds: float


def measure(work: Work, gpus: list[str]) -> dict[str, Any]:
    """Chunks a second of one process alone, and of one for each of `gpus` at once (of CUDA_VISIBLE_DEVICES,
    "" = as it is here)."""
    context = multiprocessing.get_context("spawn")
    ends, processes = [], []
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        for gpu in gpus:
            if gpu:
                os.environ["CUDA_VISIBLE_DEVICES"] = gpu
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, work), daemon=True)
            process.start()
            theirs.close()
            ends.append(ours)
            processes.append(process)
        for end in ends:
            _said(end, READY_S)
        alone = _rates(ends[:1], work.seconds)[0]
        together = _rates(ends, work.seconds)
    finally:
        if before is None:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = before
        for end in ends:
            end.close()
        for process in processes:
            process.join(30.0)
            if process.is_alive():
                process.kill()
    return {
        "alone_hz": alone,
        "together_hz": together,
        "speedup": round(sum(together) / alone, 4),
        "gpus": len(set(gpus)),
    }


def _rates(ends: list[Connection], seconds: float) -> list[float]:
    for end in ends:
        end.send("go")
    return [float(_said(end, 60.0 + 10.0 * seconds)) for end in ends]


def _said(end: Connection, within_s: float) -> Any:
    """Raises RuntimeError for a process that failed or says nothing."""
    if not end.poll(within_s):
        raise RuntimeError(f"a process said nothing for {within_s} s")
    try:
        said = end.recv()
    except EOFError:
        raise RuntimeError("a process has ended before it was measured") from None
    if isinstance(said, str) and said != "ready":
        raise RuntimeError(said)
    return said


def _serve(end: Connection, work: Work) -> None:
    """The process: says "ready", then for each word a rate; ends when nobody listens."""
    try:
        from fleets.loads import saturate
        from fleets.serving import make_robots, serving
        from grids.sizes import config_of
        from vla_accel_ros.tools.bench.policies import random_policy

        device, dtype = torch.device("cuda"), torch.bfloat16
        if work.small:
            torch.set_num_threads(1)
            device, dtype = torch.device("cpu"), torch.float32
        policy = random_policy(config_of(work.kind, work.small), device, dtype)
        robots = make_robots(policy, work.robots, work.views, work.size)
        with serving(policy, work.setting, robots, work.views) as replica:
            end.send("ready")
            while True:
                end.recv()
                end.send(saturate(replica, robots, work.seconds)["chunks_hz"])
    except EOFError:
        return
    except Exception as error:
        end.send(f"a process failed: {error!r}")
        raise
