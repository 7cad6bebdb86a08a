"""The grid of OxyGen (sections 4.2 to 4.6): denoising steps S, texts of N tokens, k of these a frame, and how
requests arrive.

A row is a cell. Frames a second counts chunks of actions; actions a second counts the actions in them. Beside
ours are the same stages one request after another, plain torch likewise, and the upper bound for batching
(each text cut off at k tokens, so that one alone is open). Memory is the peak of weights and pools; power and
energy are the whole GPU's.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from grids.sharing import Isolated, Plain, Ran, Shared, equal_part
from grids.slack import text_in_slack
from shared.subjects import relative
from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.tools.bench.subjects import random_inputs, random_model

OBSERVATIONS = 3
SHARE = 0.1
"""Share of the action rate that text may cost at most."""


ARRIVALS = ("uniform", "poisson", "random length")
SHORT = 5
"""A short text has so many times fewer tokens."""


def arrivals(kind: str, frames: int, tokens: int, seed: int = 0) -> list[list[int]]:
    """For each frame the lengths of the texts that begin with it: the workloads of OxyGen's section 4.4. One
    request a frame; a Poisson number of them, with mean one; one a frame, of which half are short."""
    rng = np.random.default_rng(seed)
    if kind == "poisson":
        return [[tokens] * int(count) for count in rng.poisson(1.0, frames)]
    if kind == "random length":
        short = max(1, tokens // SHORT)
        return [[short if is_short else tokens] for is_short in rng.random(frames) < 0.5]
    return [[tokens] for _ in range(frames)]


class Cell(NamedTuple):
    """S, N, k and how requests arrive."""

    steps: int
    tokens: int
    per_frame: int
    arrivals: str

    def __str__(self) -> str:
        return f"S {self.steps}, N {self.tokens}, k {self.per_frame}, {self.arrivals}"


PARTS = "parts of a frame, and text in its slack"
"""Name of the extra cell outside the grid: `parts_ms` and `beside`."""


@dataclass(frozen=True)
class Grid:
    """What to run. Each cell is measured for `seconds`, but for at least `least` frames and at most `frames`;
    plain_frames: of plain torch.

    most_warm: frames before them, enough for as many open texts as there will be.
    """

    steps: Sequence[int]
    tokens: Sequence[int]
    per_frame: Sequence[int]
    arrivals: Sequence[str]
    frames: int
    plain_frames: int
    least: int = 16
    seconds: float = 0.6
    most_warm: int = 60
    views: int = 2
    prompt: int = 20

    def grid(self) -> Iterable[Cell]:
        """All cells, the most valuable first; cells with more tokens a frame than a text has are left out."""
        for kind in self.arrivals:
            for steps in self.steps:
                for tokens in self.tokens:
                    for k in self.per_frame:
                        if k <= tokens:
                            yield Cell(steps, tokens, k, kind)

    def cells(self) -> dict[str, Cell | None]:
        """By name; None for PARTS."""
        return {PARTS: None, **{str(cell): cell for cell in self.grid()}}

    def counts(self) -> dict[str, Any]:
        """Sample sizes, for the reader of the figures."""
        return {
            "frames": f"{self.seconds} s, {self.least} to {self.frames} frames; the row says how many",
            "warm": "as many frames as texts are under way at once, and 2",
            "isolated_frames": self.isolated_frames,
            "plain_frames": self.plain_frames,
            "text in slack": "frames, actions and text as requests through the engine's scheduler",
            "bound": "measured once for each S and k, in the process that compares with it",
            "seeds": f"weights 0, observations 0 to {OBSERVATIONS - 1}, arrivals 0",
        }

    @property
    def isolated_frames(self) -> int:
        """Of the stages one request after another."""
        return max(OBSERVATIONS, 3 * self.least // 2)


class Reference(NamedTuple):
    """One request after another, for one S and N: with the same stages, and in plain torch."""

    isolated: Ran
    plain: Ran


class Bench:
    """One model and one capture of each stage for all cells; what cells have in common is measured once."""

    def __init__(self, config: PiConfig, grid: Grid, device: torch.device, dtype: torch.dtype) -> None:
        model = random_model(config, device).set_precision(dtype)
        self._inputs = [
            random_inputs(config, grid.views, grid.prompt, device, seed) for seed in range(OBSERVATIONS)
        ]
        self._config, self._grid, self._longest = config, grid, max(grid.tokens)
        self._most = max(2 * -(-self._longest // min(grid.per_frame)) + 4, 8)
        self._shared = Shared(model, self._inputs, self._most, self._longest)
        self._shared.prepare(grid.steps[0], self._longest)
        self._references: dict[tuple[int, int], Reference] = {}
        self._bounds: dict[tuple[int, int], Ran] = {}

    def measure(self, cell: Cell | None) -> dict[str, Any]:
        """A row; for None: `beside`, the action rate with and without text in its slack, and `parts_ms` of a
        frame."""
        if cell is not None:
            return {"rows": [self._row(cell)]}
        grid = self._grid
        row: dict[str, Any] = {"steps": grid.steps[0], "tokens": self._longest, "texts": self._most}
        row |= text_in_slack(
            self._shared.model, range(OBSERVATIONS), grid.views, grid.prompt, grid.frames * 2, grid.steps[0],
            self._longest, self._most, SHARE,
        )  # fmt: skip
        gc.collect()  # its engine is in no other cell's memory
        return {"beside": row, "parts_ms": self._shared.parts_ms(grid.steps[0])}

    def _run(self, frames: Sequence[Sequence[int]], steps: int, k: int, warm: int) -> Ran:
        return self._shared.run(frames, steps, k, warm, self._grid.least, self._grid.seconds)

    def _reference(self, steps: int, tokens: int) -> Reference:
        if (steps, tokens) not in self._references:
            isolated = Isolated(self._shared).run(self._grid.isolated_frames, steps, tokens)
            frames = max(OBSERVATIONS, self._grid.plain_frames)
            plain = Plain(self._shared.model, self._inputs).run(frames, steps, tokens)
            self._references[steps, tokens] = Reference(isolated, plain)
        return self._references[steps, tokens]

    def _bound(self, steps: int, k: int) -> Ran:
        if (steps, k) not in self._bounds:
            frames = arrivals("uniform", 2 + self._grid.frames, k)
            self._bounds[steps, k] = self._run(frames, steps, k, warm=2)
        return self._bounds[steps, k]

    def _row(self, cell: Cell) -> dict[str, Any]:
        steps, tokens, k, kind = cell
        reference, bound = self._reference(steps, tokens), self._bound(steps, k)
        warm = min(-(-tokens // k), self._grid.most_warm) + 2
        frames = arrivals(kind, warm + self._grid.frames, tokens)
        ours = self._run(frames, steps, k, warm)
        lengths = Counter(length for frame in frames[warm : warm + ours.frames] for length in frame)
        alone = [(self._reference(steps, length), count) for length, count in lengths.items()]
        isolated = _mean([(pair.isolated, count) for pair, count in alone])
        plain = _mean([(pair.plain, count) for pair, count in alone])
        rate = _rate(ours)
        truth = dict(reference.isolated.texts)
        pairs = [(text, truth[index][: len(text)]) for index, text in ours.texts]
        return {
            **cell._asdict(),
            "frames": ours.frames,
            "frames_s": round(rate, 2),
            "actions_s": round(rate * self._config.horizon, 1),
            "tokens_s": round(ours.tokens / ours.window.elapsed_s, 1),
            "batch": round(ours.tokens / max(1, ours.forwards), 2),
            "isolated_frames_s": round(1.0 / isolated.seconds, 2),
            "isolated_tokens_s": round(isolated.tokens / isolated.seconds, 1),
            "plain_frames_s": round(1.0 / plain.seconds, 2),
            "bound_frames_s": round(_rate(bound), 2),
            "over_isolated": round(rate * isolated.seconds, 2),
            "over_plain": round(rate * plain.seconds, 2),
            **ours.window.ages(),
            "memory_gb": ours.window.memory_gb,
            **ours.window.energy(ours.chunks),
            "isolated_memory_gb": reference.isolated.window.memory_gb,
            "isolated_energy_mj": isolated.energy_mj,
            "texts": len(pairs),
            "tokens_equal": equal_part([text for text, _ in pairs], [want for _, want in pairs]),
            "plain_tokens_equal": equal_part(*_aligned(reference)),
            "actions_error": max(
                relative(ours.actions[index], reference.isolated.actions[index]) for index in ours.actions
            ),
            "plain_actions_error": max(
                relative(reference.isolated.actions[index], plain_actions)
                for index, plain_actions in reference.plain.actions.items()
            ),
        }


class Mean(NamedTuple):
    """Of a request, over runs: seconds, tokens, and energy where it is counted."""

    seconds: float
    tokens: float
    energy_mj: float | None


def _mean(runs: Sequence[tuple[Ran, int]]) -> Mean:
    """Of runs, each so many times: requests of different lengths take what each length takes."""
    total = sum(count for _, count in runs)
    seconds = sum(count * run.window.elapsed_s / run.chunks for run, count in runs) / total
    tokens = sum(count * run.tokens / run.chunks for run, count in runs) / total
    energies = [(run.window.energy(run.chunks)["energy_mj"], count) for run, count in runs]
    counted = [(energy, count) for energy, count in energies if energy is not None]
    energy = sum(energy * count for energy, count in counted) / total
    return Mean(seconds, tokens, round(energy, 1) if len(counted) == len(runs) else None)


def _rate(ran: Ran) -> float:
    return ran.chunks / ran.window.elapsed_s


def _aligned(reference: Reference) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    isolated, plain = dict(reference.isolated.texts), dict(reference.plain.texts)
    indices = sorted(isolated.keys() & plain.keys())
    return [isolated[index] for index in indices], [plain[index] for index in indices]
