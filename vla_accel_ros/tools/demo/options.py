"""What the user asked of the demo, checked before anything is started."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.sim.kinematics import JOINTS
from vla_accel_ros.tools.demo import plan

DEMO_S = 60.0


@dataclass(frozen=True)
class Options:
    """What the user asked for. Raises ValueError, in one sentence, for what cannot be.

    seconds: begin no episode after this time; without it and without `episodes`, DEMO_S. model: None for
    the bundled policy. ring: the cameras write into shared-memory rings, instead of sending images.
    domain: None for one that nobody uses.
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
    ring: bool
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
