"""Several whole chunks in one denoise stage: the time of a batch relative to one chunk.

    python bench/chunks_at_once.py [--kinds pi0 pi05] [--batches 1 2 3 4 8] [--prefix T] [--runs N]

Full-size random weights, ten steps. Each batch is one replay of its graph after a warm-up, timed by GPU
events. The prefixes of T random tokens are in the pool already, and the chunks are not copied to the host.
`against_one` is the time of a batch divided by that of one chunk: batching pays if it is below the number of
chunks. Prints a table and writes bench/results/chunks_at_once.json. --small runs tiny models in float32 on a
CPU, timed by the host, to try the command; its figures mean nothing and are written only to --out.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from full_size.command import measuring, new_document, place
from full_size.figures import summary, write
from full_size.gpu import alone, gpu_id
from grids.sizes import KINDS, config_of
from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.stages.stages import Stages
from vla_accel_ros.tools.bench.policies import random_policy
from vla_accel_ros.tools.cli import finish

STEPS, WARM_UPS = 10, 10


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, measure; returns the exit status."""
    parser = measuring(__doc__, run, "chunks_at_once")
    add = parser.add_argument
    add("--kinds", nargs="+", choices=tuple(KINDS), default=tuple(KINDS))
    add("--batches", nargs="+", type=int, default=(1, 2, 3, 4, 8), help="chunks at once (default: 1 2 3 4 8)")
    add("--prefix", type=int, default=532, help="tokens (default: %(default)s: two views and a prompt of 20)")
    add("--runs", type=int, default=100, help="replays of each (default: %(default)s)")
    return finish(parser, arguments)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write. Raises RuntimeError without a CUDA device."""
    device, dtype, out = place(arguments)
    document = new_document(
        dtype,
        "weights 0, prefixes and noise 0",
        steps=STEPS,
        prefix=arguments.prefix,
        runs=arguments.runs,
    )
    print(f"{'':6}{'chunks':>7}{'p50 ms':>9}{'p99 ms':>9}{'/ one':>7}{'chunks/s':>10}", flush=True)
    with alone(gpu_id(device)), torch.inference_mode():
        for kind in arguments.kinds:
            config = config_of(kind, arguments.small)
            model = random_policy(config, device, dtype).model
            pool = KVPool(config.prefix, max(arguments.batches), config.max_tokens, device, dtype)
            stages, one = Stages(model, pool), 0.0
            for batch in arguments.batches:
                times = measure(stages, batch, min(arguments.prefix, config.max_tokens), arguments.runs)
                found = summary(1e3 * times)
                one = one or found["p50_ms"]
                case = {
                    "kind": kind,
                    "chunks": batch,
                    **found,
                    "against_one": round(found["p50_ms"] / one, 4),
                }
                document["cases"].append(case)
                print(
                    f"{kind:6}{batch:7d}{found['p50_ms']:9.3f}{found['p99_ms']:9.3f}"
                    f"{case['against_one']:7.2f}{1e3 * batch / found['p50_ms']:10.1f}",
                    flush=True,
                )
                if out is not None:
                    write(out / "chunks_at_once.json", document)
    return 0


def measure(stages: Stages, batch: int, prefix: int, runs: int) -> np.ndarray:
    """Seconds of each run of a batch on prefixes of so many tokens, each in a slot of its own."""
    config, device = stages.model.config, stages.pool.k.device
    made = torch.Generator().manual_seed(0)
    stages.pool.k.copy_(torch.randn(stages.pool.k.shape[1:], generator=made).expand(stages.pool.k.shape))
    stages.pool.v.copy_(torch.randn(stages.pool.v.shape[1:], generator=made).expand(stages.pool.v.shape))
    noise = torch.randn(batch, config.horizon, config.action_dim, generator=made).to(device)
    state = torch.randn(batch, config.state_dim, generator=made).to(device)
    stages.act(noise, state, range(batch), [prefix] * batch, STEPS)  # captures it
    stage = stages.denoise(batch, STEPS)
    for _ in range(WARM_UPS):
        stage.run()
    return np.array([_timed(stage.run, device) for _ in range(runs)])


def _timed(work: Callable[[], object], device: torch.device) -> float:
    if device.type != "cuda":
        began_s = time.perf_counter()
        work()
        return time.perf_counter() - began_s
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return 1e-3 * begin.elapsed_time(end)


if __name__ == "__main__":
    sys.exit(main())
