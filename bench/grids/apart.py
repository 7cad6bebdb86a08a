"""One task of OxyGen's "Parallel" baseline (section 4.1.2): its own process with its own model.

    PYTHONPATH=bench python -m grids.apart TASK PLAN STEPS TOKENS

TASK is `action` or `text`, on the stages of the isolated baseline. It reads commands from standard input, one
a line, and answers each with one line of JSON: `open` and `close` a measuring window, do one `frame TOKENS`,
or `run SECONDS TOKENS` as many frames as there is time for. It ends with its input; everything else goes to
standard error.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch

from grids import sizes
from grids.measure import Window
from grids.oxygen import OBSERVATIONS
from grids.sharing import Isolated, Shared
from vla_accel_ros.tools.bench.subjects import random_inputs, random_model


class Task:
    """Frames of one task, and the window they are counted in. most_tokens: of the longest text."""

    def __init__(self, task: str, plan: sizes.Plan, steps: int, most_tokens: int) -> None:
        device = torch.device("cpu" if plan.name == "small" else "cuda")
        dtype = torch.float32 if plan.name == "small" else torch.bfloat16
        grid, config = plan.oxygen, plan.oxygen_model
        model = random_model(config, device).set_precision(dtype)
        seeds = range(OBSERVATIONS)
        inputs = [random_inputs(config, grid.views, grid.prompt, device, seed) for seed in seeds]
        self._isolated = Isolated(Shared(model, inputs, 1, most_tokens))
        self._task, self._steps, self._window, self._frames = task, steps, Window(device), 0
        for _ in range(3):  # captures what there is to capture
            self.frame(min(2, most_tokens))

    def open(self) -> dict[str, Any]:
        """Begin to count."""
        self._frames = 0
        self._window = Window(self._window.device).__enter__()
        return {}

    def frame(self, tokens: int) -> dict[str, Any]:
        """Do the task once, for the next observation; returns the tokens."""
        index, begin = self._frames % OBSERVATIONS, time.perf_counter()
        said: tuple[int, ...] = ()
        if self._task == "action":
            self._isolated.act(index, self._steps)
        else:
            said = self._isolated.say(index, tokens)
        self._window.ages_s.append(time.perf_counter() - begin)
        self._frames += 1
        return {"tokens": said}

    def run(self, seconds: float, tokens: int) -> dict[str, Any]:
        """Do frames one after another for so many seconds; returns the figures."""
        self.open()
        while not self._frames or self._window.open_s < seconds:
            self.frame(tokens)
        return self.close()

    def close(self) -> dict[str, Any]:
        """End counting; returns the figures. Power is the whole device's."""
        window = self._window
        window.__exit__()
        return {
            "frames": self._frames,
            "elapsed_s": window.elapsed_s,
            "memory_gb": window.memory_gb,
            **window.ages(),
            **window.energy(self._frames),
        }


def main(task: str, plan: str, steps: int, most_tokens: int) -> None:
    """Serve standard input."""
    replies, sys.stdout = sys.stdout, sys.stderr

    def reply(found: dict[str, Any]) -> None:
        print(json.dumps(found), file=replies, flush=True)

    if plan == "small":
        torch.set_num_threads(1)
    made = Task(task, sizes.plan(plan), steps, most_tokens)
    reply({"ready": task})
    for line in sys.stdin:
        word, *given = line.split()
        if word == "frame":
            reply(made.frame(int(given[0])))
        elif word == "run":
            reply(made.run(float(given[0]), int(given[1])))
        else:
            reply(made.open() if word == "open" else made.close())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:5]))
