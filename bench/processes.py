"""From an image to its command through the nodes' loops, each in its own process, without ROS.

    python bench/processes.py [--ways fresh stream] [--lanes one two three] [--seconds S] [--motion PART]
        [--engine KEY=VALUE ...]

For machines without rclpy, where nodes cannot run, these are the nodes' loops, made from the same parts
(bench/node_loops): two cameras of 640x480 at 30 Hz write shared-memory rings; a robot sends 500 joint states
a second; inference streams a full-size model with random weights over page-locked rings and writes every
chunk into the slot; trajectory follows the chunks and makes the commands of a forward_command controller.
Pipes replace the topics of frame handles, and slots those of joints and commands. So deserialising,
publishing and discovery cost nothing here; bench/ingest.py and bench/interpreter.py measure them.

Random weights ask for motion beyond any limit, so actions are scaled to a share of it (--motion). By default
all limits are kept, as by most chunks of a policy; with 0.1 every chunk has to be limited, which takes the
trajectory loop about five times as long.

For each case, after a warm-up and by one clock: the time from a frame's stamp to its arrival, to when vision
took it, to its prefix, to its first chunk in the slot, and to the first command made with one of its chunks,
when it would be published; commands a second and the time between two; chunks and frames a second, and
dropped frames. The ways: `fresh`: the first chunk of a frame is denoised whole and before others; `stream`:
every chunk has a seat (docs/lab/staggered.md). Chunks are not guided. --engine sets any other field of
EngineConfig. Prints a table and writes bench/results/processes.json. --small runs a tiny model in float32 on
a CPU to try the command; its figures mean nothing and are written only to --out.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from node_loops import camera, robot, trajectory
from node_loops.figures import figures
from node_loops.running import Processes
from node_loops.setting import CAMERA_HZ, JOINTS_HZ, Setting, write_contract

from vla_accel_ros.tools.cli import finish

STEP_DT_S = 1 / 30
STAGGERED = 10


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, measure; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.set_defaults(run=run)
    add = parser.add_argument
    add("--kind", choices=("pi0", "pi05"), default="pi0")
    add("--ways", nargs="+", choices=("fresh", "stream"), default=["fresh"], help="how chunks begin")
    add("--lanes", nargs="+", choices=("one", "two", "three"), default=["one"])
    add("--seconds", type=float, default=15.0, help="of each case (default: %(default)s)")
    add("--warm-up", type=float, default=3.0, help="seconds before (default: %(default)s)")
    add("--action-hz", type=float, default=JOINTS_HZ, help="chunks wanted (default: %(default)s)")
    add("--motion", type=float, default=0.03, help="part of their motion (default: %(default)s)")
    add("--language-hz", type=float, default=0.0, help="texts wanted (default: none)")
    add("--commands-hz", type=float, default=500.0, help="100 to 1000 (default: %(default)s)")
    add("--lead", type=float, default=0.005, help="lead_s of the trajectory (default: %(default)s)")
    add("--staggered", type=int, default=STAGGERED, help="chunks at once (default: %(default)s)")
    add("--views", type=int, choices=(1, 2, 3), default=2, help="number of cameras (default: %(default)s)")
    add("--prompt", type=int, default=20, help="tokens of the prompt (default: %(default)s)")
    add("--size", nargs=2, type=int, default=(480, 640), metavar=("H", "W"), help="of the cameras' images")
    add("--engine", nargs="+", default=(), metavar="KEY=VALUE", help="further options of EngineConfig")
    add("--small", action="store_true", help="a tiny model on the CPU, to try the command itself")
    add("--out", type=Path, help="folder of processes.json (default: bench/results)")
    return finish(parser, arguments)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write. Raises RuntimeError without a CUDA device, and if a process fails."""
    from full_size.command import place
    from full_size.figures import write

    _, dtype, out = place(arguments)
    further = _options(arguments.engine)
    document: dict[str, Any] = {
        "kind": arguments.kind,
        "views": arguments.views,
        "prompt": arguments.prompt,
        "size": list(arguments.size),
        "dtype": str(dtype).removeprefix("torch."),
        "camera_hz": CAMERA_HZ,
        "joints_hz": JOINTS_HZ,
        "commands_hz": arguments.commands_hz,
        "action_hz": arguments.action_hz,
        "language_hz": arguments.language_hz,
        "lead_s": arguments.lead,
        "motion": arguments.motion,
        "seconds": arguments.seconds,
        "transport": "rings, slots and a pipe between processes; no ROS",
        "seeds": "weights 0, images 0, noise 0",
        "cases": [],
    }
    print(HEAD, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for way in arguments.ways:
            for lanes in arguments.lanes:
                setting = _setting(arguments, Path(folder), way, lanes, further)
                found = measure(setting, arguments.warm_up, arguments.seconds)
                document |= found.pop("provenance")
                document["cases"].append({"way": way, "lanes": lanes, **found})
                print(line(document["cases"][-1]), flush=True)
                if out is not None:
                    write(out / "processes.json", document)  # an interrupted run keeps its results
    return 0


def measure(setting: Setting, warm_up_s: float, seconds: float) -> dict[str, Any]:
    """The figures of one case, with the engine's options and `provenance`."""
    from node_loops import inference

    with Processes() as processes:
        theirs, ours = processes.context.Pipe(duplex=False)
        with theirs, ours:
            processes.start("inference", inference.run, setting, theirs)
            processes.start("trajectory", trajectory.run, setting)
            processes.start("robot", robot.run, setting)
            told = processes.ready()["inference"]
            processes.start("camera", camera.run, setting, ours)
            processes.ready()
            time.sleep(warm_up_s)
            begin_ns = time.time_ns()
            time.sleep(seconds)
            end_ns = time.time_ns()
            return {**told, **figures(processes.end(), begin_ns, end_ns)}


def _setting(
    arguments: argparse.Namespace, folder: Path, way: str, lanes: str, further: dict[str, Any]
) -> Setting:
    from node_loops.inference import config_of

    images = config_of(arguments.kind, arguments.small).image_names[: arguments.views]
    name = f"bench-{os.getpid()}-{way}-{lanes}"
    contract = write_contract(folder / f"{name}.yaml", images, arguments.commands_hz, STEP_DT_S)
    count = arguments.staggered
    engine = {"fast": True, "staggered": count, "staggering": way, "lanes": lanes, "slots": count + 6}
    setting = Setting(
        name,
        contract,
        tuple(arguments.size),
        arguments.commands_hz,
        arguments.lead,
        arguments.kind,
        arguments.small,
        arguments.prompt,
        arguments.motion,
    )
    rates = {"vision": CAMERA_HZ, "action": arguments.action_hz, "language": arguments.language_hz}
    return replace(setting, engine={**engine, **further}, rates=rates)


def _options(given: Sequence[str]) -> dict[str, Any]:
    """KEY=VALUE as options. Raises ValueError for an invalid one."""
    import yaml

    from vla_accel_ros.engine.config import EngineConfig

    options = dict[str, Any]()
    for one in given:
        key, equals, value = one.partition("=")
        if not equals or key not in vars(EngineConfig()):
            raise ValueError(
                f"--engine {one} is no KEY=VALUE of a field of EngineConfig: see docs/reference/api.md"
            )
        options[key] = yaml.safe_load(value)
    return options


HEAD = (
    f"{'':14}{'vision/s':>9}{'dropped':>8}{'chunks/s':>10}{'image to: seen':>15}{'chunk':>8}{'command':>9}"
    f"{'p99 ms':>8}{'commands/s':>11}{'apart p99':>10}{'max':>7}{'given up':>10}"
)


def line(case: dict[str, Any]) -> str:
    """Of the table."""
    none, to, apart = float("nan"), case["image_to"], case["commands"]["interval"]
    medians = [to[name].get("p50_ms", none) for name in ("prefix", "chunk", "command")]
    return (
        f"{case['way'] + ', ' + case['lanes']:14}{case['vision']['hz']:9.2f}{case['vision']['dropped']:8d}"
        f"{case['chunks']['hz']:10.1f}{medians[0]:15.2f}{medians[1]:8.2f}{medians[2]:9.2f}"
        f"{to['command'].get('p99_ms', none):8.2f}{case['commands']['hz']:11.1f}"
        f"{apart.get('p99_ms', none):10.2f}{apart.get('max_ms', none):7.1f}{case['given_up']['level']:>10}"
    )


if __name__ == "__main__":
    sys.exit(main())
