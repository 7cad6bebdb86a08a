"""The same policies and scheduler in simulated time: nothing is computed, without threads or a real clock.

A micro-batch advances at its rate beside the work in the other lane, so it speeds up when that ends. A step
of the scheduler is split into its two halves, because micro-batches of two lanes overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from agents.durations import Durations
from agents.runner import AgentRunner
from agents.workload import Agents, Arrival, Served
from vla_accel_ros.engine.config import Split
from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.lanes.lane import Lane
from vla_accel_ros.engine.policies.policy import Policy
from vla_accel_ros.engine.request import MicroBatch
from vla_accel_ros.engine.scheduling.scheduler import Scheduler
from vla_accel_ros.models.config import GemmaConfig

_DONE = 1e-9
"""Of a micro-batch that is left, and is none."""


class Nothing:
    """A runner that computes nothing."""

    def encode(self, slot: int, split: Split | None) -> None:
        pass

    def prefill(
        self, slot: int, begin: int, tokens: int, beside: Sequence[int], split: Split | None
    ) -> list[int]:
        return [0] * len(beside)

    def decode(self, slots: Sequence[int], split: Split | None) -> list[int]:
        return [0] * len(slots)

    def open(self, slot: int, ready: torch.cuda.Event | None) -> int:
        return 0

    def close(self, slot: int) -> None:
        pass


@dataclass
class _Running:
    """left: remaining share of the micro-batch; 1 at its start, 0 if its requests were already finished."""

    batch: MicroBatch
    left: float


class Simulation:
    """Lanes that take given durations. order: (time, lane, batch) of every micro-batch that started."""

    def __init__(
        self, policy: Policy, lanes: Sequence[str], durations: Durations, prompt: int, slots: int = 16
    ) -> None:
        tiny = GemmaConfig(width=2, depth=1, mlp=2, heads=1, kv_heads=1, head_dim=2)
        self.pool = KVPool(tiny, slots, 1, torch.device("cpu"), torch.float32)
        self.runner = AgentRunner(self.pool, prompt, Nothing())
        self.now_s = 0.0
        self.lanes = tuple(map(Lane, lanes))
        self.scheduler = Scheduler(self.runner, policy, clock=lambda: self.now_s, lanes=self.lanes)
        self.order: list[tuple[float, str, MicroBatch]] = []
        self._durations = durations
        self._running: dict[str, _Running] = {}

    def run(self, arrivals: Sequence[Arrival]) -> list[Served]:
        """Run all arrivals to the end. Raises RuntimeError if the policy never runs some of them."""
        agents, coming = Agents(self.scheduler), list(reversed(arrivals))
        while coming or agents.left:
            while coming and coming[-1].at_s <= self.now_s:
                arrival = coming.pop()
                agents.submit(arrival, arrival.at_s)
            self._begin()
            if not self._running and not coming:
                if agents.left:
                    raise RuntimeError(f"{agents.left} requests wait, and the policy runs none of them.")
                break
            self._advance(coming[-1].at_s if coming else float("inf"))
        return agents.served

    def _begin(self) -> None:
        for lane in self.lanes:
            if lane.name in self._running:
                continue
            batch = self.scheduler._schedule(lane)
            if batch is not None:
                nothing = all(request.finished for request in batch.requests)
                self._running[lane.name] = _Running(batch, 0.0 if nothing else 1.0)
                self.order.append((self.now_s, lane.name, batch))

    def _advance(self, next_s: float) -> None:
        """Advance to the next arrival or to the first micro-batch that ends."""
        takes_s = {lane: self._takes_s(lane) for lane in self._running}
        ends_s = [self.now_s + one.left * takes_s[lane] for lane, one in self._running.items()]
        then_s = min([next_s, *ends_s])
        for lane, one in self._running.items():
            one.left -= (then_s - self.now_s) / takes_s[lane]
        self.now_s = then_s
        for each in self.lanes:
            if each.name in self._running and self._running[each.name].left <= _DONE:
                self._end(each, self._running.pop(each.name))

    def _takes_s(self, lane: str) -> float:
        others = [one.batch for name, one in self._running.items() if name != lane]
        return self._durations.takes_s(self._running[lane].batch, others[0] if others else None)

    def _end(self, lane: Lane, one: _Running) -> None:
        self.scheduler._postprocess(lane, self.scheduler._run(lane, one.batch))
        self.scheduler._end(lane)
        self.scheduler._queue.settle()
