"""The error of the actions with fewer bits, and the time and memory that they save.

    python bench/precision.py [--subjects bundled random] [--kinds pi0 pi05] [--views 2]

Two subjects. `bundled`: the demo policy on frames from the middle of simulated tasks; its actions are
compared with those of the plain network in float32, in milliradians and relative to how far they move. It
runs anywhere; on a CPU with the kernels' references, whose times would say nothing and are not taken.
`random`: pi0 and pi0.5 at full size with random weights on a GPU, with times. Random weights have no outlier
channels, which cost trained ones the most; the demo policy is trained, but small. --model takes another
policy of the same contract. Prints tables and writes bench/results/precision_bundled.json and, on a GPU,
precision_random.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_accel_ros.planning.families.work import ENGINE_PRECISIONS as PRECISIONS
from vla_accel_ros.tools.cli import finish
from vla_accel_ros.tools.options import chosen_model, model_option
from vla_accel_ros.tools.provenance import provenance

if TYPE_CHECKING:
    import torch

    from vla_accel_ros.engine.engine import Engine
    from vla_accel_ros.tools.bench.subjects import Ours
    from vla_accel_ros.types import Observation

SUBJECTS = ("bundled", "random")
KINDS = ("pi0", "pi05")


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, measure; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.set_defaults(run=run)
    parser.add_argument("--subjects", nargs="+", choices=SUBJECTS, help="default: random only on a GPU")
    parser.add_argument("--frames", type=int, default=48, help="of the simulation (default: %(default)s)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="of random")
    parser.add_argument("--precisions", nargs="+", default=PRECISIONS, choices=PRECISIONS, help="of random")
    parser.add_argument("--views", nargs="+", type=int, default=(2,), help="numbers of cameras, of random")
    parser.add_argument("--runs", type=int, default=100, help="replays of each (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("bench/results"), help="folder of the JSON")
    model_option(parser)
    return finish(parser, arguments)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write precision_SUBJECT.json. Raises RuntimeError for random without a CUDA device."""
    import torch

    cuda = torch.cuda.is_available()
    subjects = arguments.subjects or (SUBJECTS if cuda else SUBJECTS[:1])
    if "random" in subjects and not cuda:
        raise RuntimeError("full-size models are measured on a GPU, and torch sees no CUDA device here.")
    device = torch.device("cuda" if cuda else "cpu")
    arguments.out.mkdir(parents=True, exist_ok=True)
    for subject in subjects:
        measured = bundled(arguments, device) if subject == "bundled" else random(arguments, device)
        document = {**measured, **provenance()}
        (arguments.out / f"precision_{subject}.json").write_text(json.dumps(document, indent=1) + "\n")
    return 0


def bundled(arguments: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """A policy on frames of the simulation, in float32 and in bfloat16."""
    import numpy as np
    import torch

    from vla_accel_ros.engine.engine import Engine
    from vla_accel_ros.models.checkpoints.checkpoint import load_policy

    torch.set_num_threads(1)
    observations = list(frames(arguments.frames))
    states = np.stack([observation.state for observation in observations])
    policy = load_policy(chosen_model(arguments), device, torch.float32)
    exact = chunks(Engine(policy, step_dt_s=1 / 30), observations)
    moved = exact - states[:, None]
    document: dict[str, Any] = {
        "computed by": "the kernels"
        if device.type == "cuda"
        else "the kernels' references on a CPU, no times",
        "frames": arguments.frames,
        "moved_rms_mrad": round(1e3 * float(np.sqrt(np.mean(moved**2))), 2),
        "cases": [],
    }
    print(f"{'bundled policy':22}{'rms mrad':>10}{'max mrad':>10}{'to float32':>12}{'to exact':>10}{'MB':>8}")
    for dtype in (torch.float32, torch.bfloat16):
        policy = load_policy(chosen_model(arguments), device, dtype)
        same = None
        for precision in PRECISIONS:
            if precision == "fp8" and device.type == "cuda" and dtype == torch.float32:
                continue  # its products are bfloat16
            engine = Engine(policy, step_dt_s=1 / 30, fast=True, precision=precision)
            actions = chunks(engine, observations)
            same = actions if same is None else same
            apart = actions - exact
            case = {
                "dtype": str(dtype).removeprefix("torch."),
                "precision": precision,
                "rms_mrad": 1e3 * float(np.sqrt(np.mean(apart**2))),
                "max_mrad": 1e3 * float(np.abs(apart).max()),
                "to_float32": float(np.linalg.norm(apart) / np.linalg.norm(moved)),
                "to_exact": float(np.linalg.norm(actions - same) / np.linalg.norm(moved)),
                "copies_mb": engine.runner.copied_bytes / 1e6,
            }
            document["cases"].append({name: _rounded(value) for name, value in case.items()})
            print(
                f"{case['dtype']:>12} {precision:9}{case['rms_mrad']:10.2f}{case['max_mrad']:10.1f}"
                f"{case['to_float32']:12.2e}{case['to_exact']:10.1e}{case['copies_mb']:8.2f}",
                flush=True,
            )
    return document


def frames(count: int, seed: int = 0) -> Iterator[Observation]:
    """So many observations of the expert at its tasks, a few of each episode. seed: of the first episode."""
    import numpy as np

    from vla_accel_ros.sim.demonstrations import draw_task, record_episode
    from vla_accel_ros.sim.expert import Expert
    from vla_accel_ros.sim.robot import SimRobot
    from vla_accel_ros.tools.demo_policy.recipe import CAMERAS
    from vla_accel_ros.types import Observation

    robot, made = SimRobot(), 0
    expert = Expert(robot)
    while made < count:
        seed += 1
        task = draw_task(np.random.default_rng(seed))
        for sample in record_episode(task, seed, robot=robot, expert=expert)[::4][: count - made]:
            images = {image: getattr(sample, camera) for image, camera in CAMERAS.items()}
            made += 1
            yield Observation(images, sample.state, sample.instruction, made)


def chunks(engine: Engine, observations: list[Observation]) -> Any:
    """float32 [observations, H, D] rad, from the same noise for every engine."""
    import numpy as np

    config, made = engine.policy.config, []
    for seed, observation in enumerate(observations):
        noise = np.random.default_rng(seed).standard_normal((config.horizon, config.action_dim), np.float32)
        with engine.observe(observation) as prefix:
            made.append(engine.act(prefix, noise=noise).actions)
    return np.stack(made)


def random(arguments: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Full-size models of random weights: stage times, errors, bytes."""
    import torch

    from full_size.figures import allocated_by, kernels_of, summary
    from vla_accel_ros.models.config import PI0, PI05
    from vla_accel_ros.tools.bench.subjects import Ours, plain, random_inputs, random_model, relative
    from vla_accel_ros.tools.tune.pieces import times_ms

    cases: list[dict[str, Any]] = []
    names = ("encode", "prefill", "denoise", "total")
    print(
        f"{'random weights':24}"
        + "".join(f"{name:>9}" for name in names)
        + f"{'to float32':>12}{'to exact':>10}"
    )
    for kind in arguments.kinds:
        config = PI0 if kind == "pi0" else PI05
        inputs = {views: random_inputs(config, views, 20, device) for views in arguments.views}
        model = random_model(config, device)
        with torch.inference_mode():
            exact = {views: plain(model, given)().clone() for views, given in inputs.items()}
        model.set_precision(torch.bfloat16)
        torch.cuda.empty_cache()
        for views, given in inputs.items():
            with torch.inference_mode():
                error = relative(plain(model, given)(), exact[views])
            same = None
            for precision in arguments.precisions:
                ours = Ours(model, given, precision=precision)
                same = ours.actions if same is None else same
                parts = ours.parts()
                case: dict[str, Any] = {
                    "kind": kind,
                    "views": views,
                    "precision": precision,
                    **{name: summary(times_ms(parts[name], arguments.runs)) for name in names},
                    "to_float32": _rounded(relative(ours.actions, exact[views])),
                    "to_exact": _rounded(relative(ours.actions, same)),
                    "plain_bfloat16_to_float32": _rounded(error),
                    "copies_bytes": copied_bytes(ours),
                    "kernels": kernels_of(parts["total"]),
                    "allocated_bytes": allocated_by(parts["total"]),
                }
                cases.append(case)
                times = "".join(f"{case[name]['p50_ms']:9.3f}" for name in names)
                errors = f"{case['to_float32']:12.2e}{case['to_exact']:10.1e}"
                print(f"{kind:>6}, {views} views {precision:14}{times}{errors}", flush=True)
                del ours, parts
                torch.cuda.empty_cache()
    return {"dtype": "bfloat16", "prompt": 20, "runs": arguments.runs, "cases": cases}


def copied_bytes(ours: Ours) -> int:
    """Bytes of the weights that the stages have in fewer bits."""
    stages = ours.stages
    return stages.small.nbytes + (0 if stages.int8 is None else stages.int8.nbytes)


def _rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    sys.exit(main())
