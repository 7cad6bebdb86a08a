"""Figures of streams, partitions, processes and nodes beside a GPU, and of agents."""

from __future__ import annotations

from collections.abc import Iterator

from claims import CORUN, README, STREAMING, Claim, result


def streams() -> Iterator[Claim]:
    after = (
        ("stream_text_groups", 0, ", 60 s"),
        ("stream_text_groups_2", 0, ", before"),
        ("stream_groups", 1, ""),
        ("stream_h100", 0, ", an H100"),
    )
    fresh = (("stream_fresh", 0, ", joints at 1 kHz"), ("stream_fresh_pi05", 0, ""))
    for name, skipped, more in (("stream", 0, ""), *after, *fresh):
        for case in result(name)["cases"][skipped:]:
            named = f"| {case['kind']}, `{case['way']}`, `{case['setting']}`{more} |"
            first, chunks = case["first_chunk"], case["chunks"]
            figures = [case["vision"]["hz"], chunks["hz"], chunks["interval"]["p99_ms"], first["p50_ms"]]
            figures += [first["p99_ms"], case["tokens_hz"], case["saturated"]["against_first"]]
            yield STREAMING, named, figures


def streams_in_short() -> Iterator[Claim]:
    grouped, fresh = (result(name)["cases"][1] for name in ("stream_text_groups", "stream_fresh"))
    figures = [grouped["chunks"]["hz"], grouped["vision"]["hz"], grouped["tokens_hz"]]
    figures += [fresh["first_chunk"]["p99_ms"], fresh["chunks"]["hz"], fresh["tokens_hz"]]
    yield STREAMING, "On an H200 one lane makes", figures


def streams_in_groups() -> Iterator[Claim]:
    _, grouped, two, three = result("stream_text_groups")["cases"]
    before = result("stream_text_groups_2")["cases"]
    apart, dropped = (
        grouped["chunks"]["interval"]["p99_ms"],
        [two["vision"]["dropped"], three["vision"]["dropped"]],
    )
    assert not any(case["vision"]["dropped"] for case in (grouped, *before))
    yield STREAMING, "The rows *before*", [apart, None, dropped[0], None, dropped[1]]
    over = [case["saturated"][name] for case in (before[3], two) for name in ("against_first", "work")]
    yield STREAMING, "Several lanes make fewer chunks,", [*over[:2], None, *over[2:]]


def groups() -> Iterator[Claim]:
    names = {"pi0": "pi0", "pi05": "pi0.5"}
    for case in result("groups")["cases"]:
        count = "whole frame" if case["groups"] == 1 else f"{case['groups']} groups"
        figures = [case["longest_gpu_ms"], case["sum_gpu_ms"]]
        figures += [case[name][p] for name in ("step_ms", "apart_ms") for p in ("p50_ms", "p99_ms")]
        yield STREAMING, f"| {names[case['kind']]}, {count} |", figures


def partitions() -> Iterator[Claim]:
    found = result("partition")
    for split in found["splits"]:
        alone, beside = split["alone"], split["beside"]
        figures = [alone[name]["p50_ms"] for name in ("frame", "step", "chunk")]
        figures += [beside[name][p] for name in ("frame", "step") for p in ("p50_ms", "p99_ms")]
        yield STREAMING, f"| pi0.5, `{split['asked']}` |", [*figures, beside["steps_hz"]]
    yield STREAMING, "A switch between two captured splits takes", [found["switch"]["switch_ms"], None]


def processes() -> Iterator[Claim]:
    for name, how in (
        ("processes", "within limits"),
        ("processes_limited", "limited"),
        ("processes_stream", "within limits"),
    ):
        (case,) = result(name)["cases"]
        times = case["image_to"]
        figures = [case["vision"]["hz"], case["chunks"]["hz"]]
        figures += [times[what]["p50_ms"] for what in ("observation", "prefix", "chunk")]
        figures += [times["command"][p] for p in ("p50_ms", "p99_ms")]
        figures += [case["commands"]["hz"], case["chunks"]["follow"]["p50_ms"]]
        yield STREAMING, f"| pi0, `{case['way']}`, through processes, {how} |", figures
    (fresh,) = result("processes")["cases"]
    taken = [fresh["image_to"]["command"][p] for p in ("p50_ms", "p99_ms")]
    yield STREAMING, "`staggering: fresh` takes", [*taken, None, None]


def real_nodes() -> Iterator[Claim]:
    found: list[float | None] = []
    cases = [("real nodes", case) for case in result("nodes_gpu")["cases"]]
    cases += [("slower host", case) for case in result("nodes_gpu_slow_host")["cases"]]
    for where, case in cases:
        times, vision = case["image_to"], case["vision"]
        figures = [vision["hz"], vision["dropped"], vision["frames"], case["chunks"]["hz"]]
        figures += [times[what]["p50_ms"] for what in ("arrival", "observation", "prefix", "chunk")]
        command = [times["command"][p] for p in ("p50_ms", "p99_ms")]
        found += command
        named = f"| pi0, `{case['way']}`, {where}, `{case['transport']}` |"
        yield STREAMING, named, [*figures, *command, case["commands"]["hz"]]
    yield STREAMING, "Through the real nodes over ROS 2 it", found[:4]
    yield README, "  host](docs/lab/streaming.md#through-the-real-nodes)", [*found[4:6], *[None] * 14]
    yield README, "| pi0 through the nodes over ROS 2,", [2, *found[:2]]


def corun() -> Iterator[Claim]:
    measured, simulated = result("corun"), result("corun_simulated")
    durations = measured["durations"]
    alone = [durations["encode_ms"], durations["prefill_ms"], 4, durations["decode_ms"]["4"]]
    yield CORUN, "Measured on an H200 (`bench/results/corun.json`):", alone
    for both in durations["beside"]:
        named = f"{both['split']} multiprocessors" if both["split"] else "two streams"
        figures = []
        for stage in ("encode", "prefill"):
            front_ms, step_ms = both[f"{stage}_ms"], both[f"decode_in_{stage}_ms"]
            lost_ms = front_ms - durations[f"{stage}_ms"]
            figures += [front_ms, step_ms, lost_ms * step_ms / front_ms]
        yield CORUN, f"| {named} |", figures
    names = ("average_s", "p99_s", "max_s", "requests_s", "lost", "utilisation", "queue_s")
    for case in simulated["cases"]:
        load, policy = case["load"], f"`{case['policy']}`"
        figures = [case[name] for name in names]
        if case["utilisation"] < 1:
            figures.append(case["queue_mg1_s"])
        if load is None:
            figures = [case[name] for name in ("requests_s", "average_s", "max_s")]
            yield CORUN, f"| all at once: {policy} |", figures
        elif policy == "`fifo`":
            if load <= 0.8:
                yield CORUN, f"| whole requests, {load} |", figures
        else:
            yield CORUN, f"| {load}: {policy} |", figures
    for row in simulated["against_best"]:
        if row["load"] is not None:
            figures = [abs(100 * row["average_below"]), abs(100 * row["max_below"]), row["requests_over"]]
            yield CORUN, f"| {row['load']}: `{row['policy']}` below |", figures
    for case in measured["cases"]:
        figures = [case["average_s"], case["max_s"], case["requests_s"], 1e3 * case["service_s"]]
        yield CORUN, f"| measured: `{case['policy']}` |", figures
    again = result("corun_measured")
    for case in again["cases"]:
        figures = [case[name] for name in ("average_s", "p99_s", "max_s", "requests_s", "utilisation")]
        many = f"{case['requests']} at once" if case["load"] is None else f"{case['requests']} requests"
        yield CORUN, f"| {many}: `{case['policy']}` |", figures
    (whole,) = result("corun_fifo")["cases"]
    figures = [whole[name] for name in ("average_s", "p99_s", "max_s", "requests_s", "utilisation")]
    figures += [whole["queue_s"], whole["queue_mg1_s"], whole["queue_same_s"]]
    yield CORUN, f"| whole requests on an H100, {whole['load']} |", figures
    gains = []
    for row in again["against_best"]:
        if row["policy"] == "planned":
            over = 100 * abs(row["requests_over"] - 1)
            gains += [100 * row["average_below"], 100 * row["max_below"], over]
    yield CORUN, "Against `two_streams`, the best of the others,", [*gains, *[None] * 6]
