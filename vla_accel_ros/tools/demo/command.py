"""`vla demo`: its options, checked before anything is started."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from vla_accel_ros.nodes.environment import demo_contract
from vla_accel_ros.sensing.contract import Contract
from vla_accel_ros.sim.kinematics import JOINTS
from vla_accel_ros.tools.demo import plan
from vla_accel_ros.tools.options import subcommand

DEMO_S = 60.0


@dataclass(frozen=True)
class Options:
    """What the user asked for. Raises ValueError, in one sentence, for what cannot be.

    seconds: begin no episode after this time; without it and without `episodes`, DEMO_S. model: None for
    the bundled policy. domain: None for one that nobody uses.
    """

    headless: bool
    episodes: int | None
    seconds: float | None
    json: Path | None
    out: Path
    seed: int
    tasks: tuple[str, ...]
    mode: str
    model: Path | None
    contract: Path
    domain: int | None

    def __post_init__(self) -> None:
        if self.episodes is not None and self.episodes < 1:
            raise ValueError(f"--episodes is {self.episodes}: give at least 1")
        if self.seconds is not None and not 0.0 < self.seconds < float("inf"):
            raise ValueError(f"--seconds is {self.seconds}: give a time above 0")
        if self.domain is not None and not 0 <= self.domain <= 232:
            raise ValueError(f"--domain is {self.domain}: give 0 to 232")
        if self.model is not None and not (self.model / "model.safetensors").is_file():
            raise ValueError(f"--model {self.model} holds no model.safetensors: give a checkpoint folder")
        plan.episodes(self.tasks, self.seed)
        joints = Contract.load(self.contract).joint_names
        if set(joints) != set(JOINTS):
            raise ValueError(
                f"--contract {self.contract} is of joints {', '.join(joints)} but the simulated arm has "
                f"{', '.join(JOINTS)}: give a contract of that arm"
            )

    @property
    def limit_s(self) -> float | None:
        """After how long no episode begins."""
        return DEMO_S if self.seconds is None and self.episodes is None else self.seconds


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subcommand(subparsers, "demo", "drive the simulated arm through the whole stack", run)
    add = parser.add_argument
    add("--headless", action="store_true", help="a line per episode instead of the live view")
    add(
        "--episodes",
        type=int,
        metavar="N",
        help=f"how many (default: as many as begin within {DEMO_S:.0f} s)",
    )
    add("--seconds", type=float, metavar="S", help="begin no episode after this time")
    add("--json", type=Path, metavar="FILE", help="write the figures here, too")
    add(
        "--out",
        type=Path,
        default=Path("out/demo"),
        metavar="DIR",
        help="for all results (default: %(default)s)",
    )
    add("--seed", type=int, default=0, help="of the first scene (default: %(default)s)")
    add("--tasks", default="reach,place,follow", help="families, taken in turn (default: %(default)s)")
    add("--mode", default="blend", choices=("blend", "async", "block"), help="how one chunk follows another")
    add("--model", type=Path, metavar="DIR", help="checkpoint folder (default: the bundled policy)")
    add("--contract", type=Path, metavar="FILE", help="of the arm (default: the bundled one)")
    add("--domain", type=int, metavar="ID", help="ROS domain (default: one that nobody uses)")


def run(arguments: argparse.Namespace) -> int:
    """Play, write, summarise; 0 when it ran through."""
    wanted = {name: getattr(arguments, name) for name in Options.__dataclass_fields__}
    wanted["tasks"] = tuple(name.strip() for name in arguments.tasks.split(","))
    wanted["contract"] = arguments.contract or demo_contract()
    options = Options(**wanted)

    from vla_accel_ros.tools.demo.run import run

    return run(options)
