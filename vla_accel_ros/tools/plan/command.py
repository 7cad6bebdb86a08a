"""`vla plan`: predicts a model's times, memory and rates on a device, which need not be present.

Predictions follow from the model's sizes and the device's numbers (planning/); --numbers prints those with
their sources. --goal plans with what that goal sets in an engine. --robots asks about a fleet on one engine.
--measure replaces the numbers by micro-benchmarks on this machine's GPU and writes them to a device file, to
keep or contribute.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.planning.device import Device, load, names
from vla_accel_ros.planning.fleet import plan_fleet
from vla_accel_ros.planning.plan import make_plan
from vla_accel_ros.planning.sizes import MODELS, sizes_of
from vla_accel_ros.planning.verdict import Wanted, judge
from vla_accel_ros.planning.work import PRECISIONS, Sizes, Work, check_work
from vla_accel_ros.tools.options import engine_options, output_file, subcommand, training_option, write_text
from vla_accel_ros.tools.plan.text import as_json, fleet_text, headline, numbers_text, plan_text

ENGINE = ("goal", "steps", "precision", "keep_exact", "slots")
ELSEWHERE = {"precision": tuple(name for name in PRECISIONS if name.startswith("all-"))}
"""Every stage quantised, as in other engines."""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subcommand(subparsers, "plan", "predict times, memory and rates of a model on a device", run)
    add = parser.add_argument
    add("model", help=f"{', '.join(MODELS)}, or the folder of a checkpoint")
    training_option(parser)
    add("--device", default="h200", help=f"{', '.join(names())}, NAME:MODE for a power mode, or a file")
    add("--views", type=int, help="cameras (default: 2, or as many as the model has)")
    add("--prompt", type=int, default=20, help="tokens of the prompt (default: %(default)s)")
    add("--chunk", type=int, help="actions of a chunk (default: the model's)")
    engine_options(parser, *ENGINE, further=ELSEWHERE, only_given=True)
    add("--text", action="store_true", help="count the memory that pi0 or pi0.5 needs to answer questions")
    add("--vision-hz", type=float, default=10.0, help="frames a second (default: %(default)s)")
    add("--action-hz", type=float, default=10.0, help="chunks a second (default: %(default)s)")
    add("--max-age", type=float, metavar="S", help="largest age of a chunk")
    add("--contract", type=Path, help="take cameras and the age of chunks from a contract")
    add("--robots", type=int, metavar="N", help="a fleet of N robots on one engine, at --action-hz each")
    add("--numbers", action="store_true", help="print the device's numbers with their sources, too")
    add("--json", action="store_true", help="print everything as JSON")
    add(
        "--measure",
        type=output_file,
        metavar="FILE",
        help="measure this GPU for a minute, write FILE and plan with it",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the plan. Returns 0 if the wanted rates are kept, else 1.

    Raises ValueError for an unknown model, device or option, RuntimeError for --measure without a CUDA
    device.
    """
    sizes, device = sizes_of(arguments.model, arguments.trained_as), load(arguments.device)
    views, age = arguments.views, arguments.max_age
    if views is None:
        views = min(2, len(sizes.image_names))
    if arguments.contract is not None:
        from vla_accel_ros.contract.contract import Contract

        contract = Contract.load(arguments.contract)
        views, age = len(contract.pictures), age or contract.chunk.max_age_s
    if arguments.measure is not None:
        device = measured(device, arguments.measure)
    given = {name: getattr(arguments, name) for name in ENGINE if hasattr(arguments, name)}
    engine = {name: given.get(name, getattr(EngineConfig, name)) for name in (*ENGINE, "staggered")}
    goal_line = ""
    if engine["goal"]:
        config, goal_line = toward_goal(sizes, EngineConfig(**given), answers=arguments.text)
        engine = {name: getattr(config, name) for name in engine}
    work = Work(views, arguments.prompt, engine["steps"], arguments.chunk, precision=engine["precision"])
    check_work(sizes, work)
    pool = engine["slots"], engine["staggered"], engine["keep_exact"], arguments.text
    plan = make_plan(sizes, device, work, *pool)
    wanted = Wanted(arguments.vision_hz, arguments.action_hz, max_age_s=age)
    verdict = judge(plan, wanted)
    fleet, line, is_late = None, verdict.line, bool(verdict.late)
    if arguments.robots is not None:
        slots, _, *rest = pool
        fleet = plan_fleet(sizes, device, work, arguments.robots, arguments.action_hz, slots, *rest)
        alone = judge(plan, Wanted(0.0, 0.0, max_age_s=age))  # the rates of all are in the fleet's plan
        line = alone.line if alone.late else fleet_line(fleet.robots, arguments.robots)
        is_late = bool(alone.late) or fleet.robots < arguments.robots
    if arguments.json:
        print(json.dumps(as_json(plan, verdict, fleet), indent=1))
    else:
        doubtful = bool(verdict.doubtful) and fleet is None
        print(f"{headline(plan, fleet, is_late, doubtful)}\n{line}")
        print(plan_text(plan, wanted))
        print(goal_line, end="\n" if goal_line else "")
        if fleet is not None:
            print(fleet_text(fleet, arguments.robots, arguments.action_hz))
        if arguments.numbers:
            print(numbers_text(device))
    return 1 if is_late else 0


def toward_goal(sizes: Sizes, config: EngineConfig, answers: bool) -> tuple[EngineConfig, str]:
    """The config that an engine with captured stages has, and a line that says what the goal sets.

    answers: whether the policy answers questions. Raises ValueError for options that contradict each other.
    """
    import torch

    from vla_accel_ros.engine.goals import described, for_policy
    from vla_accel_ros.planning.networks import network

    chain = sizes.chain
    if chain.answers and not answers:
        silent = (replace(m, leaves=()) if m.stage == "decode" else m for m in chain.micro_requests)
        chain = replace(chain, micro_requests=tuple(silent))
    policy: Any = SimpleNamespace(
        model=network(sizes),
        config=sizes,
        device=torch.device("meta"),
        kv_dtype=torch.bfloat16,
        chain=chain,
    )
    planned = for_policy(policy, config.but(fast=True))
    return planned, described(config, planned)


def fleet_line(promised: int, wanted: int) -> str:
    """Return the sentence that says whether the wanted robots can be served."""
    if promised >= wanted:
        return f"the plan keeps the rates of {wanted} robots, of {promised} at most"
    if not promised:
        return "late by the plan: an engine serves no robot at that rate or has no memory for one"
    engines = -(-wanted // promised)
    return f"late by the plan: {wanted} robots, but an engine serves {promised}; give {engines} engines"


def measured(base: Device, out: Path) -> Device:
    """Measure this machine's GPU, write the device file and return the device. Raises RuntimeError without
    CUDA."""
    import torch

    from vla_accel_ros.planning.measure import attentions, measure, shapes, to_yaml

    if not torch.cuda.is_available():
        raise RuntimeError(
            "--measure needs a GPU, and torch sees no CUDA device here: leave it out, or run it where one is."
        )
    name, where = torch.cuda.get_device_name(), torch.device("cuda")
    major, minor = torch.cuda.get_device_capability()
    dtypes = ["bf16", *(["fp8"] if (major, minor) >= (8, 9) else []), "int8"]
    models, views = MODELS.values(), (1, 2, 3)
    read = attentions(models, views)
    gpu = measure(base, where, shapes(models, views, dtypes), say=print, read=read, rows=dtypes[1:])
    memory_gb = torch.cuda.get_device_properties(0).total_memory / 1e9
    device = replace(
        gpu, name=out.stem, title=name, memory_gb=round(memory_gb, 1), capability=10 * major + minor
    )
    note = f"Measured by vla plan --measure, torch {torch.__version__}; the rest is from {base.name}.yaml."
    write_text(out, to_yaml(device, name, note))
    print(f"written: {out}")
    return device
