"""How well a short window measures how many robots an engine serves in time.

    python bench/fleet_windows.py [--draws 30] [--small] [--json FILE]

measured: each window of results/fleet_admission_batches.json (`bench/fleet.py --parts admission`, an H200),
    and the forecast's model of the same robots, with the same phases, from what that replica had measured at
    its start. If the two agree, the forecast's error comes from the draw of phases instead of the model.
spread: by the model, for the same two settings: the largest number of robots whose p99 is within the bound in
    a window, for each of 30 draws of phases; and how often the median of 1, 2, 3, 5, 7 or 11 draws is within
    5 % of the forecast: the number of windows that a measurement needs, if the forecast were right.

Prints tables and writes bench/results/fleet_windows.json; --small takes 3 draws and writes only to --json.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from fleet_admission import BATCHES, DEFAULT, RESULTS

from fleets.loads import make_trace, most_robots
from vla_accel_ros.fleet.admission.replica_model import Measured, ReplicaModel
from vla_accel_ros.tools.provenance import provenance

OF = "fleet_admission_batches"
WINDOWS = (2.0, 3.0), (4.0, 5.0)
"""Seconds of warm-up and of what counts."""
MEDIANS = (1, 2, 3, 5, 7, 11)
TOLERANCE, RESAMPLED, SEED = 0.05, 2000, 0
JITTER, MOST = 0.1, 64


class Windows:
    """Of one setting's run: its windows, by the model of what was measured before them."""

    def __init__(self, document: dict[str, Any], case: dict[str, Any]) -> None:
        self.case, self.hz, self.within_ms = case, document["hz"], 1e3 * document["within_s"]
        self.warm_s, self.window_s = document["seconds"]["warm_up"], document["seconds"]["window"]
        serve, frames = (_curve(case[name]) for name in ("curve_ms", "frames_ms"))
        config = BATCHES if "batches" in case["setting"] else DEFAULT
        self.model = ReplicaModel.of(Measured(serve, frames, case["at_once"], config))
        self.took = cache(self._took)

    def _took(self, robots: int, seed: int, until_s: float) -> list[tuple[float, float]]:
        asked = [due.at_s for due in make_trace(robots, self.hz, JITTER, until_s, seed)]
        return self.model.play(asked, lambda robot, now_s: math.inf)

    def quantiles_ms(self, robots: int, seed: int, warm_s: float, window_s: float) -> tuple[float, float]:
        """p50 and p99 of a window."""
        took = self.took(robots, seed, warm_s + window_s)
        p50_s, p99_s = np.percentile([each for at_s, each in took if at_s >= warm_s], (50, 99))
        return 1e3 * float(p50_s), 1e3 * float(p99_s)

    def measured(self) -> list[dict[str, Any]]:
        """Each window beside the model's."""
        rows = []
        for window in sorted(self.case["windows"], key=lambda one: (one["seed"], one["robots"])):
            robots, seed, found = window["robots"], window["seed"], window["image_to_chunk"]
            p50_ms, p99_ms = self.quantiles_ms(robots, seed, self.warm_s, self.window_s)
            rows.append(
                {
                    "seed": seed, "robots": robots, "late": window["late"],
                    "measured_p50_ms": found["p50_ms"], "measured_p99_ms": found["p99_ms"],
                    "model_p50_ms": round(p50_ms, 1), "model_p99_ms": round(p99_ms, 1),
                }
            )  # fmt: skip
        return rows

    def spread(self, warm_s: float, window_s: float, draws: int) -> dict[str, Any]:
        """Of the largest number in a window, over draws of phases."""
        expected = self.case["expected"]

        def fits(robots: int, seed: int) -> bool:
            return self.quantiles_ms(robots, seed, warm_s, window_s)[1] <= self.within_ms

        found = [
            most_robots(lambda robots, seed=seed: fits(robots, seed), 1, MOST, expected)  # type: ignore[misc]
            for seed in range(draws)
        ]
        chance, within = np.random.default_rng(SEED), {}
        for count in MEDIANS:
            medians = np.median(chance.choice(found, (RESAMPLED, count)), axis=1)
            share = np.mean(np.abs(medians / expected - 1.0) <= TOLERANCE)
            within[str(count)] = round(float(share), 3)
        return {
            "warm_up_s": warm_s, "window_s": window_s, "expected": expected, "least": min(found),
            "median": float(np.median(found)), "most": max(found), "within_tolerance": within,
        }  # fmt: skip


def _curve(times_ms: dict[str, float]) -> tuple[tuple[int, float], ...]:
    return tuple(sorted((int(batch), 1e-3 * ms) for batch, ms in times_ms.items()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, compute; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--draws", type=int, default=30, help="of phases (default: %(default)s)")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    given = parser.parse_args(arguments)
    draws = 3 if given.small else given.draws
    of = json.loads((RESULTS / f"{OF}.json").read_text())
    document: dict[str, Any] = {"of": OF, "tolerance": TOLERANCE, "draws": draws, "settings": []}
    for case in of["admission"]:
        windows = Windows(of, case)
        spread = [windows.spread(*length, draws) for length in WINDOWS[: 1 if given.small else None]]
        row = {"setting": case["setting"], "measured": windows.measured(), "spread": spread}
        document["settings"].append(row)
        print(json.dumps(row, indent=1), flush=True)
    out = given.json or (None if given.small else RESULTS / "fleet_windows.json")
    if out is not None:
        drawn = f"phases 0 to {draws - 1}, medians {SEED}"
        out.write_text(json.dumps({**document, "seeds": drawn, **provenance()}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
