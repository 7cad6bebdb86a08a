"""The modes of the trajectory path with the bundled policy: block, async, blend and rtc, and two masks of
rtc.

Closed loop in simulation time, one family of tasks, three conditions (the scene stays; the target jumps 6 to
14 cm during the motion; another block is asked for after 1 s), and an inference of 2, 4 and 8 steps of 1/30
s. A chunk begins when the last one is done, at least 0.1 s after that began; in mode block, when the arm is
at rest. Seed n is the same scene, event and noise in every cell, so differences are paired. Intervals are 95
%: Wilson's for success, bootstrap for medians.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from handovers.episodes import CONDITIONS, Job, played
from handovers.paired import median, shown
from vla_accel_ros.control.chunking.rtc import RtcSettings
from vla_accel_ros.sim.tasks import FAMILIES
from vla_accel_ros.tools.demo_policy.evaluate import wilson
from vla_accel_ros.tools.demo_policy.recipe import DENOISE_STEPS, HORIZON
from vla_accel_ros.tools.demo_policy.rollout import Episode, Handover, Timing

MODES: dict[str, Handover] = {
    "block": Handover("block", execution_horizon=HORIZON // 2),
    "async": Handover("async"),
    "blend": Handover("blend"),
    "rtc": Handover("rtc"),
    "rtc, delay only": Handover("rtc", rtc=RtcSettings(mask="hard", mask_horizon=0)),
    "rtc, whole overlap": Handover("rtc", rtc=RtcSettings(mask_horizon=HORIZON)),
}
REFERENCE = "blend"
SHORTEST_PERIOD = 3  # frames: the node's 10 Hz vision loop


@dataclass(frozen=True)
class Plan:
    """What to play. delays: of inference, in steps of 1/30 s."""

    policy: Path
    contract: Path
    seeds: int = 20
    delays: tuple[int, ...] = (2, 4, 8)
    family: str = "reach"

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(f"family is {self.family!r}; use one of {', '.join(FAMILIES)}.")
        if self.seeds < 1:
            raise ValueError(f"seeds is {self.seeds}; play at least 1.")
        if not self.delays or min(self.delays) < 1:
            raise ValueError(f"delays are {self.delays}; give some, of at least 1 step.")

    @property
    def cells(self) -> list[tuple[str, int, str]]:
        """(condition, delay, mode), in the table's order."""
        return [(c, delay, mode) for c in CONDITIONS for delay in self.delays for mode in MODES]

    def as_dict(self) -> dict[str, Any]:
        """For the JSON: what was played, without the machine's paths."""
        return {
            "policy": self.policy.name,
            "contract": self.contract.name,
            "family": self.family,
            "seeds": [0, self.seeds - 1],
            "delays": list(self.delays),
            "shortest_period": SHORTEST_PERIOD,
            "denoise_steps": DENOISE_STEPS,
            "modes": {name: asdict(mode) for name, mode in MODES.items()},
        }


@dataclass(frozen=True)
class Cell:
    """The episodes of one cell, seed by seed."""

    condition: str
    delay: int
    mode: str
    episodes: list[Episode]


def play(plan: Plan, processes: int = 1) -> list[Cell]:
    """Everything in the plan; the result does not depend on the processes."""
    jobs = [
        Job(plan.family, condition, Timing(max(SHORTEST_PERIOD, delay), delay), MODES[mode], seed)
        for condition, delay, mode in plan.cells
        for seed in range(plan.seeds)
    ]
    episodes = list(tqdm(played(jobs, plan.policy, plan.contract, processes), total=len(jobs), mininterval=5))
    groups = [episodes[i : i + plan.seeds] for i in range(0, len(episodes), plan.seeds)]
    return [Cell(*cell, group) for cell, group in zip(plan.cells, groups)]


def summary(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """One row a cell: success, and medians of the time of the successful, jerk, tracking and seam.

    Every figure has its interval beside it. `against_blend` has medians of the paired differences, that of
    the time over the seeds that succeeded in both.
    """
    reference = {(c.condition, c.delay): c.episodes for c in cells if c.mode == REFERENCE}
    rows = []
    for cell in cells:
        won = sum(e.success for e in cell.episodes)
        row: dict[str, Any] = {
            "condition": cell.condition,
            "delay": cell.delay,
            "mode": cell.mode,
            "n": len(cell.episodes),
            "success": won / len(cell.episodes),
            "success_interval_95": wilson(won, len(cell.episodes)),
            "time_s": median([e.time_s for e in cell.episodes if e.success]),
            "jerk": median([e.jerk for e in cell.episodes]),
            "tracking_rad": median([e.tracking for e in cell.episodes]),
            "seam_rad": median([e.seam for e in cell.episodes]),
        }
        pairs = list(zip(cell.episodes, reference[cell.condition, cell.delay]))
        row["against_blend"] = {
            "won_only_here": sum(a.success and not b.success for a, b in pairs),
            "won_only_there": sum(b.success and not a.success for a, b in pairs),
            "time_s": median([a.time_s - b.time_s for a, b in pairs if a.success and b.success]),
            "jerk": median([a.jerk - b.jerk for a, b in pairs]),
        }
        rows.append(row)
    return rows


def lines(rows: Iterable[dict[str, Any]]) -> Iterable[str]:
    """The table in Markdown; medians with their intervals."""
    yield (
        "| condition | delay | mode | n | success % | time s | time - blend s | jerk rad/s^3 | "
        "tracking mrad | seam mrad |"
    )
    yield "|" + "---|" * 10
    for row in rows:
        low, high = row["success_interval_95"]
        yield (
            f"| {row['condition']} | {row['delay']} | {row['mode']} | {row['n']} | "
            f"{100 * row['success']:.0f} ({100 * low:.0f}-{100 * high:.0f}) | "
            f"{shown(row['time_s'], '{:.2f}')} | {shown(row['against_blend']['time_s'], '{:+.2f}')} | "
            f"{shown(row['jerk'], '{:.0f}')} | {shown(row['tracking_rad'], '{:.1f}', 1e3)} | "
            f"{shown(row['seam_rad'], '{:.0f}', 1e3)} |"
        )


def as_json(cells: Iterable[Cell]) -> list[dict[str, Any]]:
    """Every episode, for bench/results: one row a cell, lists by seed."""
    return [
        {"condition": cell.condition, "delay": cell.delay, "mode": cell.mode}
        | {
            name: [round(float(getattr(e, name)), 5) for e in cell.episodes]
            for name in ("success", "time_s", "jerk", "tracking", "seam")
        }
        for cell in cells
    ]
