"""From an image to the published command through the real nodes over ROS 2, with a full-size model on a GPU.

    python bench/nodes_gpu.py [--transports ring raw] [--ways fresh stream plain] [--seconds S] [--model DIR]
        [--inference KEY=VALUE ...] [--trajectory KEY=VALUE ...]

`inference` and `trajectory` run as users start them, with a contract and parameters, on a checkpoint with
random weights that is written first: a full-size pi0 in bfloat16. Two cameras of 640x480, triggered together
at 30 Hz, publish like the camera node: whole images (`raw`) or handles of frames in shared memory (`ring`).
Joints come at 500 Hz, and a stand-in for a forward_command controller receives 500 commands a second. Each is
its own process on real DDS with the package's profile, in its own graph.

Random weights make random motion: their statistics scale actions to the share --motion of a degree, so that
most are within all limits, like those of a trained policy.

All figures are the nodes' own: the timeline that `vla trace` reads, loop_stats and /diagnostics. A node keeps
the last 20 s of its timeline or less, so a case is measured in windows of --window seconds, and read between
them. For each case: the time from a frame's stamp to its arrival, to when vision took it, to its prefix, to
its first chunk in the slot, and to the first published command of one of its chunks; the steps between;
commands, chunks and frames a second; dropped frames, missed deadlines, what was given up; and CPU time by
purpose of the threads. The ways: `fresh` and `stream` as in docs/lab/staggered.md, ten chunks at once;
`plain`: chunks one after another, as in the nodes' defaults, but at 30 frames a second. Prints a table and
writes bench/results/nodes_gpu.json. --small runs a tiny model in float32 on a CPU to try the command; its
figures mean nothing and are written only to --out.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from real_nodes.contract import CAMERA_HZ, JOINTS_HZ, TOPICS, write_contract
from real_nodes.spawned import Processes

from vla_accel_ros.tools.cli import finish

if TYPE_CHECKING:
    from real_nodes.figures import Window
    from real_nodes.running import Watch

STEP_DT_S = 1 / 30
STAGGERED, HIGH_HZ = 10, 500.0
WORDS = 19
SETTLE_S = 1.0
ANSWER_S, MARGIN_S = 10.0, 3.0
WAYS: Mapping[str, Mapping[str, object]] = {
    "plain": {},
    "fresh": {
        "action_hz": HIGH_HZ,
        "staggered": STAGGERED,
        "staggering": "fresh",
        "seats_by_load": True,
        "text_groups": 4,
        "text_share": 0.1,
    },
    "stream": {"action_hz": HIGH_HZ, "staggered": STAGGERED, "prefill_groups": 9, "text_groups": 4},
}
"""Parameters of the node inference that differ from its defaults."""
SMALL: Mapping[str, object] = {"device": "cpu", "fast": "true", "text_groups": 2, "prefill_groups": 2}


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, measure; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.set_defaults(run=run)
    add = parser.add_argument
    add("--kind", choices=("pi0", "pi05"), default="pi0")
    add("--transports", nargs="+", choices=tuple(TOPICS), default=["ring", "raw"], help="of images")
    add("--ways", nargs="+", choices=tuple(WAYS), default=["fresh"], help="how chunks are made")
    add("--seconds", type=float, default=24.0, help="of each case (default: %(default)s)")
    add("--window", type=float, default=6.0, help="seconds at a time (default: %(default)s)")
    add("--warm-up", type=float, default=5.0, help="seconds before (default: %(default)s)")
    add("--motion", type=float, default=0.03, help="degrees that actions ask for (default: %(default)s)")
    add("--language-hz", type=float, default=4.5, help="texts wanted, 0: none (default: %(default)s)")
    add("--camera-hz", type=float, default=CAMERA_HZ, help="frames (default: %(default)s)")
    add("--joints-hz", type=float, default=JOINTS_HZ, help="joint states (default: %(default)s)")
    add("--commands-hz", type=float, default=500.0, help="100 to 1000 (default: %(default)s)")
    add("--lead", type=float, default=0.005, help="lead_s of the trajectory (default: %(default)s)")
    add("--views", type=int, choices=(1, 2, 3), default=2, help="number of cameras (default: %(default)s)")
    add("--size", nargs=2, type=int, default=(480, 640), metavar=("H", "W"), help="of the cameras' images")
    add("--model", type=Path, metavar="DIR", help="keep the checkpoint there, and take one that is there")
    add("--logs", type=Path, metavar="DIR", help="keep the nodes' logs there")
    add("--inference", nargs="+", default=(), metavar="KEY=VALUE", help="further parameters of inference")
    add("--trajectory", nargs="+", default=(), metavar="KEY=VALUE", help="further parameters of trajectory")
    add("--small", action="store_true", help="a tiny model on the CPU, to try the command itself")
    add("--out", type=Path, help="folder of nodes_gpu.json (default: bench/results)")
    return finish(parser, arguments)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write. Raises RuntimeError without a CUDA device, and if a node fails."""
    from full_size.command import place
    from full_size.figures import write
    from vla_accel_ros.tools.provenance import provenance
    from vla_accel_ros.tools.running.ending import ended_by_signals
    from vla_accel_ros.tools.running.graph import own_graph

    _, dtype, out = place(arguments)
    given = {node: _options(node, getattr(arguments, node)) for node in ("inference", "trajectory")}
    document: dict[str, Any] = {
        "kind": arguments.kind,
        "views": arguments.views,
        "words": WORDS,
        "size": list(arguments.size),
        "dtype": str(dtype).removeprefix("torch."),
        "camera_hz": arguments.camera_hz,
        "joints_hz": arguments.joints_hz,
        "commands_hz": arguments.commands_hz,
        "language_hz": arguments.language_hz,
        "motion": arguments.motion,
        "nodes": "rclpy and Fast DDS, a process for each node",
        "seeds": "weights 0, images 0, noise 0",
        **provenance(),
        "cases": [],
    }
    print(HEAD, flush=True)
    with ended_by_signals(), contextlib.ExitStack() as closing:
        folder = Path(closing.enter_context(tempfile.TemporaryDirectory()))
        model = _model(arguments, folder)
        environment = closing.enter_context(own_graph())
        for way in arguments.ways:
            for transport in arguments.transports:
                logs = (arguments.logs or folder) / f"{way}-{transport}"
                logs.mkdir(parents=True, exist_ok=True)
                contract = _contract(arguments, logs / "contract.yaml", transport)
                parameters = _parameters(arguments, way, contract, model, given)
                found = measure(contract, parameters, environment, logs, arguments)
                document["cases"].append({"way": way, "transport": transport, **found})
                print(line(document["cases"][-1]), flush=True)
                if out is not None:
                    write(out / "nodes_gpu.json", document)  # an interrupted run keeps its results
    return 0


def measure(
    contract: Path,
    parameters: Mapping[str, Mapping[str, object]],
    environment: Mapping[str, str],
    logs: Path,
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    """The figures of one case, with the nodes' parameters."""
    from real_nodes import figures, robot
    from real_nodes.running import Watch, node_processes

    given = robot.Robot(contract, tuple(arguments.size))
    nodes = node_processes(parameters, environment, logs)
    with contextlib.ExitStack() as closing:
        driving = closing.enter_context(Processes())
        driving.start("cameras", robot.cameras, given)
        driving.start("joints", robot.joints, given)
        driving.ready()
        closing.callback(nodes.sweep)
        closing.callback(nodes.end)
        nodes.start()
        watch = closing.enter_context(Watch(nodes))
        began_s = time.monotonic()
        watch.start(" ".join(["word"] * WORDS))
        nodes.note_shared_memory()
        ready_s = time.monotonic() - began_s
        windows, tallies = list[figures.Window](), list[Tally]()
        for _ in range(max(1, round(arguments.seconds / arguments.window))):
            watch.spin(arguments.warm_up if not windows else SETTLE_S)
            pids = {**{node.name: node.pid for node in nodes.nodes}, **driving.pids}
            one, tally = _window(watch, pids, arguments.window)
            windows.append(one)
            tallies.append(tally)
        told = driving.end()
        return {
            "parameters": {name: dict(parameters[name]) for name in parameters},
            "ready_s": round(ready_s, 1),
            **figures.figures(windows, told["cameras"]["stamps_ns"], "/positions/commands"),
            **summed(tallies),
            "stops": [
                why
                for at_ns, why in watch.stops
                if any(one.begin_ns <= at_ns < one.end_ns for one in windows)
            ],
            "warnings": watch.warnings(),
        }


@dataclass(frozen=True)
class Tally:
    """Counts of one window. misses: missed deadlines, by loop. cpu: shares of a core, by process and purpose
    of its threads."""

    misses: Mapping[str, int]
    cpu: Mapping[str, Mapping[str, float]]


def _window(watch: Watch, pids: Mapping[str, int], seconds: float) -> tuple[Window, Tally]:
    """Measure, and only then ask for what was done."""
    from real_nodes import figures
    from real_nodes.shares import Shares

    from vla_accel_ros.nodes.clients.timelines import Timelines
    from vla_accel_ros.timeline import merged

    misses, shares = watch.misses(), Shares(pids)
    begin_ns = time.monotonic_ns()
    watch.spin(seconds)
    end_ns = time.monotonic_ns()
    cpu = shares.so_far()
    missed = {name: count - misses.get(name, 0) for name, count in watch.misses().items()}
    with Timelines() as timelines:
        since_s = (time.monotonic_ns() - begin_ns) * 1e-9
        told, missing = timelines.read(since_s + MARGIN_S, ANSWER_S)
    if missing:
        raise RuntimeError(f"{' and '.join(missing)} did not tell what happened")
    return figures.window(merged(told), begin_ns, end_ns), Tally(missed, cpu)


def summed(tallies: Sequence[Tally]) -> dict[str, Any]:
    """Of all windows: misses together, shares on average."""
    count, last = len(tallies), tallies[-1]
    return {
        "misses": {loop: sum(tally.misses.get(loop, 0) for tally in tallies) for loop in last.misses},
        "cpu": {
            process: {
                purpose: round(sum(tally.cpu[process][purpose] for tally in tallies) / count, 3)
                for purpose in shares
            }
            for process, shares in last.cpu.items()
        },
    }


def _model(arguments: argparse.Namespace, folder: Path) -> Path:
    """The checkpoint's folder, written unless it is there."""
    from load import write_pi, write_tokenizer

    from grids.sizes import config_of
    from vla_accel_ros.models.config import TRAINED_AS
    from vla_accel_ros.models.pi.training import USUAL

    model = arguments.model or folder / "model"
    if (model / "tokenizer.json").is_file():  # what is written last
        return model
    model.mkdir(parents=True, exist_ok=True)
    config = config_of(arguments.kind, arguments.small)
    sizes = {**config.to_json(), TRAINED_AS: USUAL[config.kind].to_json()}
    write_pi(model, config, {"vla_accel_ros": sizes}, arguments.motion)
    write_tokenizer(model)
    return model


def _contract(arguments: argparse.Namespace, path: Path, transport: str) -> Path:
    from grids.sizes import config_of

    images = config_of(arguments.kind, arguments.small).image_names[: arguments.views]
    rates = (arguments.camera_hz, arguments.joints_hz)
    return write_contract(path, images, arguments.commands_hz, STEP_DT_S, transport, *rates)


def _parameters(
    arguments: argparse.Namespace,
    way: str,
    contract: Path,
    model: Path,
    given: Mapping[str, Mapping[str, object]],
) -> dict[str, dict[str, object]]:
    shared = {"autostart": True, "contract": str(contract)}
    inference = {"model": str(model), "vision_hz": arguments.camera_hz, "language_hz": arguments.language_hz}
    small = SMALL if arguments.small else {}
    return {
        "inference": {**shared, **inference, **WAYS[way], **small, **given["inference"]},
        "trajectory": {**shared, "lead_s": arguments.lead, **given["trajectory"]},
    }


def _options(node: str, given: Sequence[str]) -> dict[str, object]:
    """KEY=VALUE as parameters of a node. Raises ValueError or TypeError for an invalid one."""
    import yaml

    from vla_accel_ros.nodes.params.tables import NODES

    known, options = {one.name: one for one in NODES[node]}, dict[str, object]()
    for one in given:
        key, equals, text = one.partition("=")
        if not equals or key not in known:
            raise ValueError(
                f"--{node} {one} is no KEY=VALUE of a parameter of {node}: see config/params.yaml"
            )
        value = yaml.safe_load(text)
        if isinstance(known[key].default, float) and isinstance(value, int):
            value = float(value)
        known[key].check(value)
        options[key] = value
    return options


HEAD = (
    f"{'':14}{'vision/s':>9}{'dropped':>8}{'chunks/s':>10}{'image to: seen':>15}{'chunk':>8}{'command':>9}"
    f"{'p99 ms':>8}{'commands/s':>11}{'apart p99':>10}{'max':>7}{'inference, cores':>17}"
)


def line(case: dict[str, Any]) -> str:
    """Of the table."""
    none, to, apart = float("nan"), case["image_to"], case["commands"]["interval"]
    medians = [to[name].get("p50_ms", none) for name in ("prefix", "chunk", "command")]
    return (
        f"{case['way'] + ', ' + case['transport']:14}{case['vision']['hz']:9.2f}"
        f"{case['vision']['dropped']:8d}{case['chunks']['hz']:10.1f}{medians[0]:15.2f}{medians[1]:8.2f}{medians[2]:9.2f}"
        f"{to['command'].get('p99_ms', none):8.2f}{case['commands']['hz']:11.1f}"
        f"{apart.get('p99_ms', none):10.2f}{apart.get('max_ms', none):7.1f}"
        f"{sum(case['cpu']['inference'].values()):17.2f}"
    )


if __name__ == "__main__":
    sys.exit(main())
