"""Figures of streams, partitions, processes and nodes beside a GPU, and of agents."""

from __future__ import annotations

from collections.abc import Iterator

from claims import CORUN, PERFORMANCE, README, STREAMING, Claim, result


def streams() -> Iterator[Claim]:
    for name, more in (
        ("stream_text_groups", ", 60 s"),
        ("stream_h100", ", an H100"),
        ("stream_fresh", ", joints at 1 kHz"),
        ("stream_fresh_pi05", ""),
    ):
        for case in result(name)["cases"]:
            named = f"| {case['kind']}, `{case['way']}`, `{case['setting']}`{more} |"
            first, chunks = case["first_chunk"], case["chunks"]
            figures = [case["vision"]["hz"], chunks["hz"], chunks["interval"]["p99_ms"], first["p50_ms"]]
            figures += [first["p99_ms"], case["tokens_hz"], case["saturated"]["against_first"]]
            yield STREAMING, named, figures


def partitions() -> Iterator[Claim]:
    found = result("partition")
    for split in found["splits"]:
        alone, beside = split["alone"], split["beside"]
        figures = [alone[name]["p50_ms"] for name in ("frame", "step", "chunk")]
        figures += [beside[name][p] for name in ("frame", "step") for p in ("p50_ms", "p99_ms")]
        yield STREAMING, f"| pi0.5, `{split['asked']}` |", [*figures, beside["steps_hz"]]


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
    yield PERFORMANCE, "| pi0 through the nodes over ROS 2,", [2, *found[:2]]
    yield README, "| first chunk of a frame", [None, 2, *found[:2]]
    grouped = result("stream_text_groups")["cases"][1]
    figures = [grouped["chunks"]["hz"], grouped["vision"]["hz"], grouped["tokens_hz"]]
    yield README, "| chunks a second", figures


def corun() -> Iterator[Claim]:
    again = result("corun_measured")
    for case in again["cases"]:
        figures = [case[name] for name in ("average_s", "p99_s", "max_s", "requests_s", "utilisation")]
        many = f"{case['requests']} at once" if case["load"] is None else f"{case['requests']} requests"
        yield CORUN, f"| {many}: `{case['policy']}` |", figures
