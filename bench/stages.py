"""Latency of each stage of the bundled policy: plain torch, one thread, batch 1.

    python bench/stages.py [--runs N] [--device cpu|cuda] [--json FILE]

Times whole engine calls from outside: observe (resize, encode, prefix), act (all denoising steps), and one
token of ask. The file is stages_<device>.json: medians and p99 in milliseconds, and the success of this
setting in the bundled tasks, in simulated time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from run import Bench, Given, Row, main
from shared.closed_loop import bundled_success
from shared.timing import summary, synchronize
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.tools.demo_policy.recipe import DENOISE_STEPS
from vla_accel_ros.tools.options import chosen_contract, chosen_model, contract_option, model_option
from vla_accel_ros.types import Observation

WARM_UP = 10


def options(add: Callable[..., Any]) -> None:
    add("--runs", type=int, default=200)
    add("--episodes", type=int, default=10, help="of each task family (default: %(default)s)")
    add("--device", choices=("cpu", "cuda"), default="cpu")
    parser: Any = add.__self__  # type: ignore[attr-defined]
    model_option(parser)
    contract_option(parser)


def timed(body: Callable[[], object], runs: int, device: torch.device) -> dict[str, float]:
    """Median and p99 of `runs` calls, after a warm-up."""
    times_ms = []
    for _ in range(WARM_UP + runs):
        begin_s = time.perf_counter()
        body()
        synchronize(device)
        times_ms.append(1e3 * (time.perf_counter() - begin_s))
    return {name: round(value, 3) for name, value in summary(times_ms[WARM_UP:]).items()}


def measure(given: Given) -> Iterator[None]:
    """All stages."""
    torch.set_num_threads(1)
    if given.file.name == "stages.json":
        given.file = given.file.with_name(f"stages_{given.device}.json")
    contract = Contract.load(chosen_contract(given))
    policy = load_policy(chosen_model(given), given.device, delta_mask=contract.delta_mask)
    engine = Engine(policy, steps=DENOISE_STEPS)
    rng = np.random.default_rng(0)
    images = {name: rng.integers(0, 256, (224, 224, 3), dtype=np.uint8) for name in policy.config.image_names}
    observation = Observation(images, np.zeros(policy.joints, np.float32), "reach the red block", 0)
    with engine.observe(observation) as prefix:
        stages = {
            "observe": lambda: engine.observe(observation).release(),
            f"act ({DENOISE_STEPS} steps)": lambda: engine.act(prefix),
            "ask, 8 tokens": lambda: "".join(engine.ask(prefix, max_tokens=8)),
        }
        table: Row = {name: timed(body, given.runs, policy.device) for name, body in stages.items()}
    for name, row in table.items():
        print(f"{name:20} p50 {row['p50_ms']:8.3f} ms   p99 {row['p99_ms']:8.3f} ms")
    given.document["stages"] = table
    given.document["success"] = bundled_success(given, DENOISE_STEPS)
    print(f"success {given.document['success']}")
    yield None


SEEDS = {"threads": 1, "seed": 0}
BENCH = Bench("stages", measure, options, rows="stages", about=SEEDS, smoke="--runs 2 --episodes 1")

if __name__ == "__main__":
    sys.exit(main(BENCH))
