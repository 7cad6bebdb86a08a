"""Latency of each stage of the bundled policy: plain torch, one thread, batch 1.

    python bench/stages.py [--runs N] [--device cpu|cuda] [--json FILE]

Times whole engine calls from outside: observe (resize, encode, prefix), act (all denoising steps), and one
token of ask. Prints a table and writes bench/results/stages_<device>.json (medians and p99 in milliseconds).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.tools.demo_policy.recipe import DENOISE_STEPS
from vla_accel_ros.tools.options import chosen_contract, chosen_model, contract_option, model_option
from vla_accel_ros.tools.provenance import provenance
from vla_accel_ros.types import Observation

WARM_UP = 10


def time_ms(body: Callable[[], object], runs: int, device: str) -> dict[str, float]:
    """Median and p99 of `runs` calls, after a warm-up."""
    taken = []
    for _ in range(WARM_UP + runs):
        start = time.perf_counter()
        body()
        if device == "cuda":
            torch.cuda.synchronize()
        taken.append(1e3 * (time.perf_counter() - start))
    p50, p99 = np.quantile(taken[WARM_UP:], (0.5, 0.99))
    return {"p50_ms": round(float(p50), 3), "p99_ms": round(float(p99), 3)}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write here instead")
    model_option(parser)
    contract_option(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    contract = Contract.load(chosen_contract(arguments))
    policy = load_policy(chosen_model(arguments), arguments.device, delta_mask=contract.delta_mask)
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
        table = {name: time_ms(body, arguments.runs, arguments.device) for name, body in stages.items()}
    for name, row in table.items():
        print(f"{name:20} p50 {row['p50_ms']:8.3f} ms   p99 {row['p99_ms']:8.3f} ms")
    result = arguments.json or Path(__file__).parent / "results" / f"stages_{arguments.device}.json"
    document = {"stages": table, "runs": arguments.runs, "threads": 1, "seed": 0, **provenance()}
    result.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
