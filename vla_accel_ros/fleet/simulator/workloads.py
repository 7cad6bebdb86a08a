"""Tasks for the simulator: how many actions each needs, and how many actions of each chunk are executed.

Five named workloads stand for pairs of a model and a benchmark; WORKLOADS has their numbers of kinds and
tasks, static horizons and batch durations. Further assumptions:

- Each kind of task has a mean length and a static horizon; tasks of a kind vary in length by SPREAD
  (lognormal). Of the LIBERO-like kinds 10 % have a horizon below 10 and 40 % of 40 or more (Kairos Figure 3);
  the horizons of other kinds are uniform.
- A dynamic horizon is the static one times a ratio. In simulated benchmarks 25 % of rounds have ratio 1, 25 %
  one of 1 to 2, and 50 % one of 2 to 2.8 (Figure 4: half of the rounds can at least double); on the bimanual
  robot 38 % have 1, 42 % up to 1.5, and 20 % 1.5 to 2.8. A ratio stays for the next round with probability
  STAYS, else it is drawn again, so that about 70 % of rounds equal the one before (Figure 10: 52 to 85 %).
- No horizon exceeds the chunk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

STATIC, DYNAMIC = "static", "dynamic"
HORIZONS = (STATIC, DYNAMIC)
SPREAD = 0.15
STAYS = 0.6
SIMULATED = ((0.25, 1.0, 1.0), (0.25, 1.0, 2.0), (0.5, 2.0, 2.8))
REAL = ((0.38, 1.0, 1.0), (0.42, 1.0, 1.5), (0.2, 1.5, 2.8))
"""Share of rounds, and the range of their ratios."""


@dataclass(frozen=True)
class Script:
    """One task of one robot: `actions` in all, of which horizons[j] are executed from the chunk of round j
    (the last horizon from then on). chunk: actions of a chunk. served_s: recorded duration of each chunk, if
    any. Raises ValueError if a value is out of range."""

    kind: str
    actions: int
    horizons: Sequence[int]
    chunk: int = 50
    served_s: Sequence[float] = ()

    def __post_init__(self) -> None:
        if (
            self.actions < 1
            or not self.horizons
            or not 1 <= min(self.horizons) <= max(self.horizons) <= self.chunk
        ):
            raise ValueError(
                f"a task of kind '{self.kind}' has {self.actions} actions and horizons "
                f"{list(self.horizons)[:5]} in chunks of {self.chunk}; give 1 action or more, "
                "and horizons of 1 to the chunk."
            )

    def horizon(self, number: int) -> int:
        """Return the horizon of a round, counted from 0."""
        return self.horizons[min(number, len(self.horizons) - 1)]

    def serves_s(self, number: int) -> float | None:
        """Return the recorded duration of a round's chunk; None if there is none."""
        return self.served_s[min(number, len(self.served_s) - 1)] if self.served_s else None

    @property
    def rounds(self) -> int:
        """Rounds that the task takes if no action is lost."""
        number = done = 0
        while done < self.actions:
            done += self.horizon(number)
            number += 1
        return number


@dataclass(frozen=True)
class Workload:
    """kinds, tasks: how many. horizon: lowest and highest static horizon. batch_s: seconds of a batch, and
    for each of its requests. limit: largest batch. actions: lowest and highest mean length of a kind. long:
    share of tasks that have long_actions. ratios: of dynamic horizons. chunk: actions of a chunk."""

    kinds: int
    tasks: int
    horizon: tuple[int, int]
    batch_s: tuple[float, float]
    limit: int
    actions: tuple[int, int]
    chunk: int = 50
    long: float = 0.0
    long_actions: tuple[int, int] = (0, 0)
    ratios: tuple[tuple[float, float, float], ...] = SIMULATED
    libero: bool = False

    def served_s(self, batch: int) -> float:
        """Return the assumed seconds of a batch."""
        return self.batch_s[0] + self.batch_s[1] * batch


WORKLOADS: Mapping[str, Workload] = {
    "libero_pi05": Workload(40, 300, (8, 50), (0.060, 0.050), 8, (100, 400), libero=True),
    "meta_smol": Workload(50, 700, (8, 25), (0.055, 0.010), 16, (60, 240)),
    "robotwin_wam": Workload(50, 200, (16, 32), (0.350, 0.250), 4, (100, 400), chunk=32),
    "bimanual_pi05": Workload(1, 150, (22, 22), (0.060, 0.050), 8, (450, 450), ratios=REAL),
    "mixed_fleet": Workload(
        40, 700, (10, 40), (0.020, 0.012), 16, (100, 400), long=0.05, long_actions=(2000, 4000)
    ),
}


def draw(workload: Workload, seed: int, horizon: str = STATIC, tasks: int | None = None) -> list[Script]:
    """Draw tasks (default: the workload's number), each of a random kind. Both horizons get the same
    tasks."""
    kinds = np.random.default_rng([seed, 0])
    horizons = _static(workload, kinds)
    low, high = workload.actions
    lengths = np.exp(kinds.uniform(np.log(low), np.log(high), workload.kinds))
    chance, ratio = np.random.default_rng([seed, 1]), np.random.default_rng([seed, 2])
    scripts = []
    for _ in range(workload.tasks if tasks is None else tasks):
        kind = int(chance.integers(workload.kinds))
        length, name = lengths[kind], f"{kind}"
        if chance.random() < workload.long:
            length, name = chance.uniform(*workload.long_actions), "long"
        actions = max(1, round(length * chance.lognormal(0.0, SPREAD)))
        static = int(horizons[kind])
        cut_lengths = (static,) if horizon == STATIC else _dynamic(workload, static, actions, ratio)
        scripts.append(Script(name, actions, cut_lengths, workload.chunk))
    return scripts


def _static(workload: Workload, chance: np.random.Generator) -> np.ndarray:
    low, high = workload.horizon
    if workload.libero:
        part = chance.random(workload.kinds)
        drawn = np.where(
            part < 0.1,
            chance.uniform(low, 10, workload.kinds),
            np.where(
                part < 0.6, chance.uniform(10, 40, workload.kinds), chance.uniform(40, high, workload.kinds)
            ),
        )
        return np.rint(drawn).astype(int)
    return chance.integers(low, high + 1, workload.kinds)


def _dynamic(workload: Workload, static: int, actions: int, chance: np.random.Generator) -> tuple[int, ...]:
    shares = np.array([share for share, _, _ in workload.ratios])
    drawn: list[int] = []
    ratio, done = 1.0, 0
    while done < actions:
        if not drawn or chance.random() >= STAYS:
            _, low, high = workload.ratios[int(chance.choice(len(shares), p=shares / shares.sum()))]
            ratio = chance.uniform(low, high)
        drawn.append(min(workload.chunk, round(static * ratio)))
        done += drawn[-1]
    return tuple(drawn)
