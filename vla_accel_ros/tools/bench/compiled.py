"""The plain model through torch.compile, in a process of its own that can be stopped when its time is up.

    python -m vla_accel_ros.tools.bench.compiled KIND VIEWS PROMPT RUNS

prints one line of JSON: median and p99 in milliseconds, and the seconds that compiling took.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any


def measure(kind: str, views: int, prompt: int, runs: int, budget_s: float) -> dict[str, Any]:
    """The process's figures, or why there are none."""
    command = [sys.executable, "-m", __name__, kind, *map(str, (views, prompt, runs))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=budget_s)
    except subprocess.TimeoutExpired:
        return {"none": f"not compiled within {budget_s:.0f} s"}
    if done.returncode:
        return {"none": (done.stderr.strip().splitlines() or ["it failed without a word"])[-1]}
    figures: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def main(kind: str, views: int, prompt: int, runs: int) -> None:
    """Compile, measure, print."""
    import torch

    from vla_accel_ros.models.config import PI0, PI05
    from vla_accel_ros.tools.bench.subjects import plain, random_inputs, random_model
    from vla_accel_ros.tools.bench.timing import summary, times_ms

    device, config = torch.device("cuda"), PI0 if kind == "pi0" else PI05
    model = random_model(config, device).set_precision(torch.bfloat16)
    with torch.inference_mode():
        run = torch.compile(
            plain(model, random_inputs(config, views, prompt, device)), mode="reduce-overhead"
        )
        begin = time.perf_counter()
        run()
        torch.cuda.synchronize()
        taken = time.perf_counter() - begin
        print(json.dumps({**summary(times_ms(run, runs)), "compile_s": round(taken, 1)}))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
