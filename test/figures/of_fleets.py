"""Figures of fleets: the scheduler, admission, replicas, networks, simulations."""

from __future__ import annotations

from collections.abc import Iterator

from claims import FLEET_DEMO, FLEET_SIM, README, REPLICAS, SCHEDULER, Claim, one, percent, result

BATCHES = "scheduling=batches,staggered=16,seats_by_load=true,frames_together=4"


def robots_on_a_gpu() -> Iterator[Claim]:
    found = result("fleet")
    for case in (*found["throughput"], *found["peers"]):
        yield SCHEDULER, f"| `{case['setting']}` |", [case["chunks_hz"], *case["request"].values()]
    again = result("fleet_batches")
    for case in again["fleet"]:
        figures = [*case["image_to_chunk"].values(), 100 * case["late"], 100 * case["stall"]]
        figures.append(case["scheduler_step"]["p99_ms"])
        yield SCHEDULER, f"| `{case['setting']}`, trace {case['seed']}, again |", figures
    late, batches = (one(again["fleet"], setting=BATCHES, seed=seed) for seed in (1, 20))
    (admitted,) = again["admission"]
    figures = [admitted["most"], batches["robots"], *batches["image_to_chunk"].values()]
    yield README, "| robots", [None, None, *figures, late["image_to_chunk"]["p99_ms"]]
    figures = [None, admitted["most"], admitted["expected"], 100 * admitted["error"]]
    yield SCHEDULER, "`batches` misses", figures


def fleet_scheduler() -> Iterator[Claim]:
    (eleven,) = result("fleet_admission_h100")["admission"]
    figures = [eleven["expected"], eleven["expected_beside"], eleven["most"]]
    figures += [100 * abs(eleven[name]) for name in ("error", "error_beside")]
    yield SCHEDULER, "The forecast for robots not seen is", [*figures, None]
    decisions = result("fleet_decision")["steps"]
    slowest = max(row["cpu_ms"]["p99"] for row in decisions)
    yield SCHEDULER, "A step of the scheduler with", [1000, slowest, None]


def replicas_of_ray() -> Iterator[Claim]:
    found = result("fleet_replicas")
    assert found["speedup"] >= 1.9 and found["gpus"] == 2
    for case in found["cases"]:
        saturated, fleet = case["saturated"], case["fleet"]
        figures = [
            saturated["chunks_hz"],
            *saturated["image_to_chunk"].values(),
            saturated["cpu_ms_per_chunk"],
        ]
        figures += [
            fleet["robots"],
            *fleet["image_to_chunk"].values(),
            100 * fleet["late"],
            100 * fleet["stall"],
        ]
        yield REPLICAS, f"| `{case['case']}` |", figures


def robots_on_a_network() -> Iterator[Claim]:
    found = result("fleet_network")
    assert not any(
        row.get(bad)
        for row in found["rows"]
        for bad in ("chunks_wrong", "limits_broken", "commands_rejected")
    )
    figures: list[float | None] = [99]
    for name, stands in (("lan", False), ("wifi", False), ("wan", False), ("weak", True)):
        row, link = one(found["rows"], link=name, images="jpeg"), found["links"][name]
        about = [1e3 * link["delay_s"], 100 * link["loss"] or None, 1e-6 * link["rate_bit_s"]]
        about = [figure for figure in about if figure]
        p99_ms = row["took_ms"]["p99"]
        figures += [*about, p99_ms, 100 * row["stood"]] if stands else [p99_ms, *about]
    yield REPLICAS, "As JPEG,", figures
    assert [row["link"] for row in found["rows"] if row["images"] == "raw" and row["moves"]] == ["lan"]


def fleet() -> Iterator[Claim]:
    found = result("fleet_sim")
    rows = {
        row["policy"]: row for row in found["closed"] if row["robots"] == 100 and row["horizon"] == "static"
    }
    means = [abs(row["against_fifo"]["avg"]["mean"]) for row in rows.values() if row["policy"] != "las"]
    tails = [
        abs(rows[policy]["against_fifo"]["p95"]["mean"])
        for policy in ("oldest", "kairos", "aged_srpt", "gfair", "aged_remaining")
    ]
    yield FLEET_SIM, "Of 100 robots the average changes by at most", [max(means), *tails]


def fleet_demo() -> Iterator[Claim]:
    found = result("fleet_demo")
    robots, time = found["robots"].values(), found["simulated_time"]
    assert all(robot["succeeded"] for robot in robots) and found["machine"]["cores"] == 2
    done, tasks, scenes = (sum(robot[what] for robot in robots) for what in ("tasks_done", "tasks", "scenes"))
    again = [max(fault["moving_again_s"].values()) for fault in found["faults"]]
    stalled_s = max(robot["stalled_s"] for robot in robots)
    figures = [done, tasks, *percent(done, tasks), scenes, time["seconds"], time["real_seconds"]]
    figures += [time["factor"]["mean"], stalled_s, *again]
    yield FLEET_DEMO, "| three robots, two cores |", figures
