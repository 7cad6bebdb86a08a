"""Formats a plan as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from vla_accel_ros.planning.device import NUMBERS, Device
from vla_accel_ros.planning.fleet import FleetPlan
from vla_accel_ros.planning.memory import room
from vla_accel_ros.planning.plan import Plan
from vla_accel_ros.planning.verdict import Verdict, Wanted, rate_text


def headline(plan: Plan, fleet: FleetPlan | None, late: bool, doubtful: bool) -> str:
    """Return the verdict in a few words, such as "fits: 23.4 Hz, 6.1 GB": the rate of frames with a chunk
    each, or the robots, that can be promised, and the memory."""
    gigabytes = plan.memory.total / 1e9 if fleet is None else fleet.memory_gb
    if gigabytes * 1e9 > room(plan.device):
        return f"does not fit: {gigabytes:.1f} GB of {plan.device.memory_gb:g}"
    rate = f"{rate_text(plan.vision_hz)} Hz" if fleet is None else f"{fleet.robots} robots"
    return f"{'too slow' if late else 'may be late' if doubtful else 'fits'}: {rate}, {gigabytes:.1f} GB"


def plan_text(plan: Plan, wanted: Wanted) -> str:
    """Return stages, memory and rates as text."""
    device, work = plan.device, plan.work
    mode = f" in mode {device.mode}" if device.mode else ""
    lines = [
        f"{plan.sizes.kind} on {device.title}{mode}, {work.precision}: {work.views} views, "
        f"{work.prompt} words, {work.steps} steps (predicted)",
        f"{'':10}{'ms':>9}{'at least':>10}{'at most':>9}{'launches':>10}{'GFLOP':>9}{'GB':>8}  bound by",
    ]
    for name, stage in plan.stages.items():
        t = stage.time
        shown = "a token" if name == "decode" else name
        lines.append(
            f"{shown:10}{t.ms:9.2f}{t.low_us / 1e3:10.2f}{t.high_us / 1e3:9.2f}{stage.launches:10d}"
            f"{stage.flops / 1e9:9.1f}{stage.bytes / 1e9:8.2f}  {t.bound}"
        )
    a, low, high = (1e3 * s for s in plan.latency)
    tokens = getattr(plan.sizes, "max_action_tokens", 0)
    most = f" and the most tokens, {tokens}" if tokens else ""
    lines.append(
        f"{'whole':10}{a:9.2f}{low:10.2f}{high:9.2f}  from images to actions, with the host's part{most}"
    )
    m = plan.memory
    shown = ", ".join(f"{name} {value / 1e9:.2f}" for name, value in asdict(m).items())
    lines.append(f"memory    {m.total / 1e9:.2f} GB of {device.memory_gb:g}: {shown}")
    shares = (f"{name} {sum(of) / 1e9:.2f}" for name, of in plan.parts.items())
    lines.append(f"          weights and copies, less what is freed: {', '.join(shares)}")
    lines.append(f"power     {plan.watts:g} W at most")
    chunks_hz = plan.action_hz(wanted.vision_hz)
    chunks = f"{rate_text(chunks_hz)} chunks a second" if chunks_hz else "no chunk: lower --vision-hz"
    lines.append(
        f"promised  {rate_text(plan.vision_hz)} Hz of frames and chunks; beside {wanted.vision_hz:g} Hz of "
        f"frames {chunks}"
    )
    return "\n".join(lines)


def fleet_text(fleet: FleetPlan, robots: int, rate_hz: float) -> str:
    """Return the times of each batch size, and what one engine can serve."""
    lines = ["together  " + "".join(f"{batch:9d}" for batch in fleet.curve)]
    for index, name in enumerate(("frames ms", "chunks ms")):
        lines.append(f"{name:10}" + "".join(f"{1e3 * times[index]:9.2f}" for times in fleet.curve.values()))
    lines.append(
        f"fleet     {fleet.chunks_hz:.0f} chunks a second with {fleet.together} in a step; {robots} robots "
        f"at {rate_hz:g} Hz are {fleet.load:.0%} of it; {fleet.robots} robots can be promised; "
        f"{fleet.memory_gb:.1f} GB"
    )
    return "\n".join(lines)


def numbers_text(device: Device) -> str:
    """Return the device's numbers with their sources."""
    lines = ["numbers"]
    for name, n in device.numbers.items():
        lines.append(f"  {name} {n.value:g} +- {n.within:.0%}, {n.source}: {n.words} ({NUMBERS[name]})")
    return "\n".join(lines)


def as_json(plan: Plan, verdict: Verdict, fleet: FleetPlan | None) -> dict[str, Any]:
    """Return the whole plan as JSON values, in seconds, bytes, watts and Hz."""
    return {
        "model": plan.sizes.kind,
        "device": {"name": plan.device.name, "mode": plan.device.mode, "watts": plan.watts},
        "work": asdict(plan.work),
        "stages": {name: asdict(stage) for name, stage in plan.stages.items()},
        "frame_s": plan.frame,
        "action_s": plan.action,
        "latency_s": plan.latency,
        "memory_bytes": asdict(plan.memory),
        "weights_bytes": {name: sum(sizes) for name, sizes in plan.parts.items()},
        "promised_hz": plan.vision_hz,
        "verdict": {**asdict(verdict), "line": verdict.line},
        "fleet": None if fleet is None else asdict(fleet),
        "numbers": {name: asdict(number) for name, number in plan.device.numbers.items()},
    }
