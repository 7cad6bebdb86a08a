"""Success against load: episodes of the bundled policy under execution horizons.

On demand (`blend`): the next image is taken so late that its chunk comes just before the last horizon ends,
as on a robot that shares a GPU. A cell may also be `block`: the arm executes the horizon, comes to rest, and
only then takes the next image. An inference takes 4 frames of 1/30 s. Seed n is the same scene, event and
noise under every horizon. The load is chunks a second, without the further samples of `spread`; `actions` is
the number executed per chunk, 30 Hz divided by the load.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from handovers import paired
from handovers.episodes import Job, Log, played
from vla_accel_ros.models.checkpoints.checksum import checksum
from vla_accel_ros.tools.demo_policy.rollout import FRAME_S, Episode, Handover, Timing

LATENCY = 4
ON_DEMAND = Timing(period=LATENCY, latency=LATENCY, on_demand=True)
MOVED = (
    *("static:8", "static:12", "static:16", "static:24", "all"),
    *("update_ratio:0.02", "agreement:0.06", "spread:0.04"),
)
STATIC = ("static:24", "all", "update_ratio:0.02")


@dataclass(frozen=True)
class Cell:
    """Episodes of one family, condition, mode and horizon."""

    family: str
    condition: str
    mode: str
    horizon: str

    def job(self, seed: int) -> Job:
        """One of its episodes."""
        handover = Handover("block" if self.mode == "block" else "blend", horizon=self.horizon)
        return Job(self.family, self.condition, ON_DEMAND, handover, seed)


def cells() -> list[Cell]:
    """In the order in which they are played."""
    found = [Cell("reach", "moved", "on demand", horizon) for horizon in MOVED]
    return found + [Cell("reach", "static", "on demand", horizon) for horizon in STATIC]


def play(
    plan: Sequence[Cell], policy: Path, contract: Path, seeds: int, processes: int, log: Path
) -> dict[Cell, list[Episode]]:
    """Every episode; those in the log are not played again."""
    jobs = [cell.job(seed) for cell in plan for seed in range(seeds)]
    kept = Log(log, checksum(policy))
    episodes = list(tqdm(played(jobs, policy, contract, processes, kept), total=len(jobs), mininterval=20))
    return {cell: episodes[i * seeds : (i + 1) * seeds] for i, cell in enumerate(plan)}


def summary(found: dict[Cell, list[Episode]]) -> list[dict[str, Any]]:
    """A row a cell, with 95 % intervals: Wilson's for success, bootstrap for medians."""
    return [_row(cell, episodes, _front(cell, found)) for cell, episodes in found.items()]


def _row(cell: Cell, episodes: Sequence[Episode], on_front: bool) -> dict[str, Any]:
    return {
        "family": cell.family,
        "condition": cell.condition,
        "mode": cell.mode,
        "horizon": cell.horizon,
        **paired.success(episodes),
        "time_s": paired.median([e.time_s for e in episodes if e.success]),
        "jerk": paired.median([e.jerk for e in episodes]),
        "wanted": paired.median([e.horizon for e in episodes]),
        "chunks_per_s": load(episodes),
        "actions": 1.0 / (FRAME_S * load(episodes)),
        "on_front": on_front,
    }


def load(episodes: Sequence[Episode]) -> float:
    """Chunks a second, mean of the episodes."""
    return sum(e.chunks_per_s for e in episodes) / len(episodes)


def _front(cell: Cell, found: dict[Cell, list[Episode]]) -> bool:
    """Whether no other horizon of the same kind of episodes succeeds as often with less load, or more often
    with as much."""
    won, cost = _won(found[cell]), load(found[cell])
    for other, episodes in found.items():
        if (other.family, other.condition, other.mode) == (cell.family, cell.condition, cell.mode):
            better = _won(episodes) >= won and load(episodes) <= cost
            if better and (_won(episodes), load(episodes)) != (won, cost):
                return False
    return True


def _won(episodes: Iterable[Episode]) -> int:
    return sum(e.success for e in episodes)


def lines(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    """The table in Markdown; * is on the Pareto front of success and load."""
    yield "| task, target, mode | horizon | success | actions a chunk | chunks/s | time s | jerk rad/s^3 |"
    yield "|" + "---|" * 7
    for row in rows:
        low, high = (100 * bound for bound in row["interval_95"])
        yield (
            f"| {row['family']}, {row['condition']}, {row['mode']} | `{row['horizon']}`"
            f"{' *' if row['on_front'] else ''} | {row['won']} of {row['n']} ({low:.0f} to {high:.0f} %) | "
            f"{row['actions']:.1f} | {row['chunks_per_s']:.2f} | {paired.shown(row['time_s'], '{:.2f}')} | "
            f"{paired.shown(row['jerk'], '{:.0f}')} |"
        )
