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
`plain`: chunks one after another, as in the nodes' defaults, but at 30 frames a second.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from real_nodes.contract import CAMERA_HZ, JOINTS_HZ, TOPICS, write_contract
from real_nodes.spawned import Processes
from run import Bench, Given, Row, main

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


def measure(given: Given) -> Iterator[Row]:
    """Each way with each transport. Raises RuntimeError if a node fails."""
    from vla_accel_ros.tools.running.graph import own_graph
    from vla_accel_ros.tools.running.processes import ended_by_signals

    words = {node: _options(node, getattr(given, node)) for node in ("inference", "trajectory")}
    with ended_by_signals(), contextlib.ExitStack() as closing:
        folder = Path(closing.enter_context(tempfile.TemporaryDirectory()))
        model = _model(given, folder)
        environment = closing.enter_context(own_graph())
        for way in given.ways:
            for transport in given.transports:
                logs = (given.logs or folder) / f"{way}-{transport}"
                logs.mkdir(parents=True, exist_ok=True)
                contract = _contract(given, logs / "contract.yaml", transport)
                parameters = _parameters(given, way, contract, model, words)
                case = of_nodes(contract, parameters, environment, logs, given)
                yield {"way": way, "transport": transport, **case}


def of_nodes(
    contract: Path,
    parameters: Mapping[str, Mapping[str, object]],
    environment: Mapping[str, str],
    logs: Path,
    options: Given,
) -> dict[str, Any]:
    """The figures of one case, with the nodes' parameters."""
    from real_nodes import figures, robot
    from real_nodes.running import Watch, node_processes

    inputs = robot.Robot(contract, tuple(options.size))
    nodes = node_processes(parameters, environment, logs)
    with contextlib.ExitStack() as closing:
        driving = closing.enter_context(Processes())
        driving.start("cameras", robot.cameras, inputs)
        driving.start("joints", robot.joints, inputs)
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
        for _ in range(max(1, round(options.seconds / options.window))):
            watch.spin(options.warm_up if not windows else SETTLE_S)
            pids = {**{node.name: node.pid for node in nodes.nodes}, **driving.pids}
            period, tally = _window(watch, pids, options.window)
            windows.append(period)
            tallies.append(tally)
        by_process = driving.end()
        return {
            "parameters": {name: dict(parameters[name]) for name in parameters},
            "ready_s": round(ready_s, 1),
            **figures.figures(windows, by_process["cameras"]["stamps_ns"], "/positions/commands"),
            **summed(tallies),
            "stops": [
                reason
                for at_ns, reason in watch.stops
                if any(period.begin_ns <= at_ns < period.end_ns for period in windows)
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
        by_process, missing = timelines.read(since_s + MARGIN_S, ANSWER_S)
    if missing:
        raise RuntimeError(f"{' and '.join(missing)} did not tell what happened")
    return figures.window(merged(by_process), begin_ns, end_ns), Tally(missed, cpu)


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


def _model(options: Given, folder: Path) -> Path:
    """The checkpoint's folder, written unless it is there."""
    from load import write_pi, write_tokenizer

    from shared.models import config_of
    from vla_accel_ros.models.config import TRAINED_AS
    from vla_accel_ros.models.pi.training import USUAL

    model = options.model or folder / "model"
    if (model / "tokenizer.json").is_file():  # what is written last
        return model
    model.mkdir(parents=True, exist_ok=True)
    config = config_of(options.kind, options.small)
    sizes = {**config.to_json(), TRAINED_AS: USUAL[config.kind].to_json()}
    write_pi(model, config, {"vla_accel_ros": sizes}, options.motion)
    write_tokenizer(model)
    return model


def _contract(options: Given, path: Path, transport: str) -> Path:
    from shared.models import config_of

    images = config_of(options.kind, options.small).image_names[: options.views]
    rates = (options.camera_hz, options.joints_hz)
    return write_contract(path, images, options.commands_hz, STEP_DT_S, transport, *rates)


def _parameters(
    options: Given, way: str, contract: Path, model: Path, given: Mapping[str, Mapping[str, object]]
) -> dict[str, dict[str, object]]:
    shared = {"autostart": True, "contract": str(contract)}
    inference = {"model": str(model), "vision_hz": options.camera_hz, "language_hz": options.language_hz}
    small = SMALL if options.small else {}
    return {
        "inference": {**shared, **inference, **WAYS[way], **small, **given["inference"]},
        "trajectory": {**shared, "lead_s": options.lead, **given["trajectory"]},
    }


def _options(node: str, given: Sequence[str]) -> dict[str, object]:
    """KEY=VALUE as parameters of a node. Raises ValueError or TypeError for an invalid one."""
    import yaml

    from vla_accel_ros.nodes.params.tables import NODES

    parameters, options = {parameter.name: parameter for parameter in NODES[node]}, dict[str, object]()
    for parameter in given:
        key, equals, text = parameter.partition("=")
        if not equals or key not in parameters:
            raise ValueError(
                f"--{node} {parameter} is no KEY=VALUE of a parameter of {node}: see config/params.yaml"
            )
        value = yaml.safe_load(text)
        if isinstance(parameters[key].default, float) and isinstance(value, int):
            value = float(value)
        parameters[key].check(value)
        options[key] = value
    return options


def options(add: Callable[..., Any]) -> None:
    """What runs, how often it publishes, and for how long."""
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


SMOKE = (
    "--small --size 48 64 --camera-hz 5 --joints-hz 50 --commands-hz 100 --transports ring --ways plain"
    " --language-hz 0 --seconds 2 --window 2 --warm-up 1 --inference seed=3"
)
ABOUT = {
    "words": WORDS,
    "nodes": "rclpy and Fast DDS, a process for each node",
    "seeds": "weights 0, images 0, noise 0",
}
BENCH = Bench("nodes_gpu", measure, options, ABOUT, gpu=True, smoke=SMOKE, starts_nodes=True)

if __name__ == "__main__":
    sys.exit(main(BENCH))
