"""The figures that README.md and docs print are those of bench/results/, to the digits that are printed.

A row of a table, or a passage, is named by how it begins; every number in it must be claimed by a figure of
a file, or by None where it is of no file: a target, a size, a run that is said to have none.
docs/lab/pipeline.md is made of its file as a whole (test/bench/test_bench_processes.py), and so are the
tables of docs/lab/fleet_sim.md (test/bench/test_bench_fleet_sim.py).
"""

from __future__ import annotations

import re

import of_devices
import of_engine
import of_fleets
import of_motion
import of_streams
import pytest
from claims import README, ROOT, Claim, printed

PARTS = (
    of_streams.corun,
    of_devices.counted_memory,
    of_devices.plans,
    of_devices.plans_of_gpus,
    of_engine.eight_bits,
    of_engine.frontier,
    of_fleets.fleet,
    of_fleets.fleet_demo,
    of_motion.interpreter,
    of_motion.force,
    of_motion.demo,
    of_motion.high_rate,
    of_motion.control,
    of_motion.noise,
    of_engine.guided_staggered,
    of_motion.cameras,
    of_engine.engine,
    of_engine.own_path,
    of_engine.block_shapes,
    of_engine.guided,
    of_engine.pipelines,
    of_engine.loading_and_precision,
    of_engine.offload,
    of_streams.streams,
    of_streams.streams_in_short,
    of_streams.streams_in_groups,
    of_streams.groups,
    of_streams.partitions,
    of_streams.processes,
    of_streams.real_nodes,
    of_fleets.robots_on_a_gpu,
    of_fleets.fleet_scheduler,
    of_fleets.replicas_of_ray,
    of_fleets.robots_on_a_network,
    of_engine.chunks_together,
    of_motion.timeline,
    of_motion.horizons,
    of_engine.solvers,
)

CLAIMS = [claim for part in PARTS for claim in part()]


def passage(document: str, begins: str) -> str:
    """A row of a table, or a paragraph, after how it begins; links are their texts."""
    text = (ROOT / document).read_text()
    at = [found.end() for found in re.finditer(f"^{re.escape(begins)}", text, re.MULTILINE)]
    assert len(at) == 1, f"{document} has {len(at)} passages that begin with '{begins}'"
    end = text.find("\n" if begins.startswith("|") else "\n\n", at[0])
    return re.sub(r"\]\([^)]*\)", "]", text[at[0] : end])


def agrees(shown: str, value: float) -> bool:
    """Whether a number is shown as it is rounded to the shown digits."""
    digits = len(shown.partition(".")[2])
    return abs(float(shown.replace(",", "")) - value) <= 0.5 * 10.0**-digits * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim[0]} {claim[1]}")
def test_every_printed_figure_is_the_measured_one(claim: Claim) -> None:
    document, begins, figures = claim
    numbers = printed(passage(document, begins))
    assert len(numbers) == len(figures), f"{numbers} are not {figures}"
    wrong = [(a, b) for a, b in zip(numbers, figures) if b is not None and not agrees(a, b)]
    assert not wrong, f"printed, measured: {wrong}"


def test_every_row_of_figures_in_readme_is_claimed() -> None:
    """A row that is added must be claimed, too."""
    table = (ROOT / README).read_text().partition("## Measured")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and printed(line.partition(" |")[2])]
    begun = tuple(begins for document, begins, _ in CLAIMS if document == README)
    assert rows and not [row for row in rows if not row.startswith(begun)]


def test_numbers_are_found_and_compared() -> None:
    text = "x p99 1,279 to 3.28 (.31/1.47) of pi0.5, 7B and 640x480; 9 rad/s^2, fp8, 2024-row 5."
    assert printed(text) == ["1,279", "3.28", ".31", "1.47", "9", "2024", "5"]
    assert agrees("7.4", 7.3522) and agrees("8,810", 8809.7) and agrees("99", 98.5)
    assert not agrees("7.3", 7.3522) and not agrees("8,810", 8811.0)
