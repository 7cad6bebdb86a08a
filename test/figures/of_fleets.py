"""Figures of fleets: the scheduler, admission, replicas, networks, simulations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from claims import FLEET_DEMO, FLEET_SIM, REPLICAS, SCHEDULER, Claim, one, result


def robots_on_a_gpu() -> Iterator[Claim]:
    found = result("fleet")
    for case in (*found["throughput"], *found["peers"]):
        yield SCHEDULER, f"| `{case['setting']}` |", [case["chunks_hz"], *case["request"].values()]
    for case in found["fleet"]:
        figures = [*case["image_to_chunk"].values(), 100 * case["late"], 100 * case["stall"]]
        figures.append(case["scheduler_step"]["p99_ms"])
        yield SCHEDULER, f"| `{case['setting']}`, trace {case['seed']} |", figures
    again = result("fleet_batches")
    yield SCHEDULER, "Later, in one run (", [again["throughput"][0]["chunks_hz"]]
    for case in again["fleet"]:
        figures = [*case["image_to_chunk"].values(), 100 * case["late"], 100 * case["stall"]]
        figures.append(case["scheduler_step"]["p99_ms"])
        yield SCHEDULER, f"| `{case['setting']}`, trace {case['seed']}, again |", figures
    (admitted,) = found["admission"]
    fit = [admitted["most"], found["seconds"]["window"], 16, admitted["expected"], -100 * admitted["error"]]
    yield SCHEDULER, "Robots that are in time:", [*fit, None]


def fleet_scheduler() -> Iterator[Claim]:
    (again,) = result("fleet_admission_h200")["admission"]
    first, second = again["seeds"]
    figures = [again["expected"], again["most"], 100 * again["error"], first["most"], second["most"]]
    figures += [first["expected"], second["expected"], 100 * abs(again["error_beside"]), None]
    yield SCHEDULER, "Expected before any robot was tried:", figures
    for found, named in zip(
        result("fleet_admission_batches")["admission"],
        ("`staggered=16,seats_by_load=true`", "`batches` of four frames"),
        strict=True,
    ):
        figures = [found["expected"], found["expected_beside"], found["most"], 100 * abs(found["error"])]
        yield SCHEDULER, f"| {named}, both |", figures
    (eleven,) = result("fleet_admission_h100")["admission"]
    figures = [eleven["expected"], eleven["expected_beside"], eleven["most"]]
    figures += [100 * abs(eleven[name]) for name in ("error", "error_beside")]
    yield SCHEDULER, "The forecast for robots not seen is", [*figures, None]
    windows = result("fleet_windows")["settings"]
    for found, named in zip(
        windows, ("`staggered=16,seats_by_load=true`", "`batches` of four frames"), strict=True
    ):
        shares = found["spread"][0]["within_tolerance"].values()
        yield SCHEDULER, f"| {named}, draws |", [100 * share for share in shares]
    first, spread = windows[0]["measured"], windows[0]["spread"][0]
    held_up = one(first, robots=34, seed=1)
    others = [row for found in windows for row in found["measured"] if row is not held_up]
    error = max(abs(row["model_p99_ms"] / row["measured_p99_ms"] - 1.0) for row in others)
    figures = [34, 1, held_up["measured_p99_ms"], held_up["model_p99_ms"], len(others), 100 * error]
    yield SCHEDULER, "- **One window was held up.**", [*figures, *_draws(spread)]
    admission = result("fleet_admission")
    rows, found = admission["simulated"], admission["measured"]
    for number, row in enumerate(rows, 1):
        asked = f"{row['hz']:g} | {row['within_ms']:g} | {100 * row['jitter']:g} | {row['policy']}"
        named = f"| {number}. {row['engine']}, {row['setting']} | {asked} |"
        figures = [row["predicted"], row["simulated"], abs(100 * row["error"]), row["least"], row["most"]]
        yield SCHEDULER, named, [*figures, 100 * row["unseen_error"], 100 * row["beside_error"]]
    errors = [row["error"] for row in rows]
    close = sum(abs(error) <= 0.05 for error in errors)
    figures = [len(errors), None, 100 * max(map(abs, errors)), sum(error <= 0.0 for error in errors)]
    for of in ("unseen_error", "beside_error"):
        figures += [sum(row[of] <= 0.05 for row in rows), None][: 2 if of == "unseen_error" else 1]
    yield SCHEDULER, f"{close} of", figures
    took = [max(row[name] for row in rows) for name in ("predicted_in_cpu_ms", "judged_in_cpu_ms")]
    yield SCHEDULER, "A forecast takes", [*took, None]
    draws = found["single_draws"]
    figures = [found["measured"], found["predicted"], abs(100 * found["predicted_error"]), None]
    figures += [draws["least"], draws["most"], draws["median"]]
    figures += [found["same_phases"], abs(100 * found["same_phases_error"])]
    yield SCHEDULER, "**Measured**: the H200 above served", figures
    for at, row in enumerate(found["windows"]):
        of = " (9 s)" if at >= len(found["windows"]) - 2 else ""
        figures = [row[f"{who}_{p}_ms"] for who in ("measured", "model") for p in ("p50", "p99")]
        yield SCHEDULER, f"| {row['robots']} robots, seed {row['seed']}{of} |", figures
    decisions = result("fleet_decision")["steps"]
    slowest = max(row["cpu_ms"]["p99"] for row in decisions)
    yield SCHEDULER, "A step of the scheduler with", [1000, slowest, None]
    for row in decisions:
        figures = [row["cpu_ms"]["p50"], row["cpu_ms"]["p99"]]
        yield SCHEDULER, f"| {row['fleet']}: `{row['policy']}` |", figures
    names = {"none": "well", "slow": "three times as slow", "stalling": "stalls"}
    for row in result("fleet_hedging")["simulated"]:
        figures = [row[name] for name in ("p50_ms", "p99_ms", "p99.9_ms", "most_ms")]
        named = f"| {names[row['fault']]}, {'hedged' if row['hedge'] else 'not hedged'} |"
        yield SCHEDULER, named, [*figures, 100 * row["hedged"], 100 * row["wasted"]]


def _draws(spread: dict[str, Any]) -> list[float | None]:
    return [spread["least"], spread["most"], spread["median"], spread["expected"]]


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
    yield REPLICAS, "Two replicas through Ray make", [found["speedup"], 1.9, None, None]
    yield REPLICAS, "Two replicas on two H100s make", [found["speedup"]]
    fleets = {case["case"]: case["fleet"] for case in found["cases"]}
    shared = fleets["ray, both"]["by_replica"]
    figures = [40, *shared.values(), fleets["ray, both"]["requests"]]
    yield REPLICAS, "80 robots on two engines", figures
    hz = {case["case"]: case["saturated"]["chunks_hz"] for case in found["cases"]}
    slower = 100 * (1.0 - (hz["ray, first"] + hz["ray, second"]) / 2 / hz["local"])
    waits_ms = [fleets[case]["image_to_chunk"]["p50_ms"] for case in ("ray, first", "ray, second", "local")]
    longer_ms = sum(waits_ms[:2]) / 2 - waits_ms[2]
    megabytes = 1e-6 * 3 * found["views"] * found["size"][0] * found["size"][1]
    network_ms = sum(found["network_ms"]) / 2
    cores = 1e-3 * hz["ray, both"] * found["cases"][-1]["saturated"]["cpu_ms_per_chunk"]
    figures = [slower, longer_ms, megabytes, network_ms, hz["ray, both"], cores]
    yield REPLICAS, "An actor makes", figures


def robots_on_a_network() -> Iterator[Claim]:
    found = result("fleet_network")
    assert not any(
        row.get(bad)
        for row in found["rows"]
        for bad in ("chunks_wrong", "limits_broken", "commands_rejected")
    )
    for row in found["rows"]:
        link = found["links"][row["link"]]
        about = [1e3 * link["delay_s"], 100 * link["loss"], 1e-6 * link["rate_bit_s"]]
        moves = row["moves"]
        figures = [row["took_ms"]["p50"], row["took_ms"]["p99"]] if moves else []
        figures += [row["rounds"]] if moves else []
        figures += [100 * row[one] for one in ("without_chunk", "asked_again", "stood")] if moves else []
        of_link = f"{about[0]:g} ms, {about[1]:g} % lost, {about[2]:g} Mbit/s"
        yield REPLICAS, f"| `{row['link']}`: {of_link} | {row['images']} |", figures


def fleet() -> Iterator[Claim]:
    found = result("fleet_sim")
    tops = {row["workload"]: row["load"] for row in found["table_2"]}

    def changes(policy: str, metric: str) -> list[float]:
        rows = (
            one(found["open"], workload=name, load=load, horizon="static", policy=policy)
            for name, load in tops.items()
        )
        return [row["against_fifo"][metric]["mean"] for row in rows]

    for policy in ("aged_remaining", "aged_srpt"):
        means, tails = changes(policy, "avg"), changes(policy, "p95")
        yield FLEET_SIM, f"`{policy}` changes the average by", [*map(abs, (*means, *tails))]
    rows = {
        row["policy"]: row for row in found["closed"] if row["robots"] == 100 and row["horizon"] == "static"
    }
    means = [abs(row["against_fifo"]["avg"]["mean"]) for row in rows.values() if row["policy"] != "las"]
    tails = [
        abs(rows[policy]["against_fifo"]["p95"]["mean"])
        for policy in ("oldest", "kairos", "aged_srpt", "gfair", "aged_remaining")
    ]
    yield FLEET_SIM, "Of 100 robots the average changes by at most", [max(means), *tails]
    known = one(result("fleet_sim_fresh")["rows"], workload="mixed_fleet", load=1.6, policy="known")
    yield FLEET_SIM, "On mixed_fleet at a load of 1.6", [abs(known["avg"]["mean"])]


def fleet_demo() -> Iterator[Claim]:
    found = result("fleet_demo")
    robots, time = found["robots"].values(), found["simulated_time"]
    assert all(robot["succeeded"] for robot in robots) and found["machine"]["cores"] == 2
    played = [sum(robot[what] for robot in robots) for what in ("tasks_done", "tasks", "scenes")]
    again = [max(fault["moving_again_s"].values()) for fault in found["faults"]]
    stalled_s = max(robot["stalled_s"] for robot in robots)
    figures = [*played, time["seconds"], time["real_seconds"], time["factor"]["mean"], stalled_s, *again]
    yield FLEET_DEMO, "| three robots, two cores |", figures
