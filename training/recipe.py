"""Everything that determines the demo policy: sizes, seeds, rounds, rates. Change it only here.

Each round's data is generated while the previous round trains, so that CPU and GPU both work; a round's data
depends only on seeds and rounds, never on timing. Rounds 0 and 1 follow the disturbed expert. Later rounds
follow the policy of an earlier round with the expert's labels (DAgger), so they visit the states that the
policy itself reaches.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from vla_accel_ros.models.config import GemmaConfig, PiConfig, VisionConfig
from vla_accel_ros.tools.demo_policy.recipe import CAMERAS, HORIZON


def policy_config(vocab: int, action_dim: int) -> PiConfig:
    """Return a small pi0.5: two cameras of 112 x 112, a chunk of 32 actions at 30 Hz."""
    return PiConfig(
        kind="pi05",
        vision=VisionConfig(width=192, depth=4, mlp=768, heads=4, image_size=112, patch=14),
        prefix=GemmaConfig(width=192, depth=6, mlp=640, heads=4, kv_heads=1, head_dim=48),
        expert=GemmaConfig(width=128, depth=6, mlp=384, heads=4, kv_heads=1, head_dim=48),
        vocab=vocab,
        action_dim=action_dim,
        state_dim=action_dim,
        horizon=HORIZON,
        max_prompt=48,
        image_names=tuple(CAMERAS),
    )


@dataclass(frozen=True)
class Recipe:
    """One training run. Episodes and optimiser steps are per round; every: frames between samples."""

    seed: int = 7
    expert_rounds: int = 2
    dagger_rounds: int = 2
    expert_episodes: int = 18_000
    dagger_episodes: int = 2_800
    expert_every: int = 14
    dagger_every: int = 6
    steps: int = 2_400
    batch: int = 1024
    learning_rate: float = 8e-4
    weight_decay: float = 0.01
    warmup: int = 500
    ema: float = 0.999

    def __post_init__(self) -> None:
        assert min(self.expert_episodes, self.dagger_episodes, self.steps, self.batch) > 0
        assert self.expert_rounds >= (2 if self.dagger_rounds else 1), (
            "the policy drives two rounds after its training"
        )

    @property
    def rounds(self) -> int:
        """Training rounds, one for each set of data."""
        return self.expert_rounds + self.dagger_rounds

    def as_dict(self) -> dict[str, int | float]:
        """Return the recipe for the model card and the checkpoint's provenance."""
        return asdict(self)


QUICK = Recipe(expert_episodes=4, dagger_episodes=2, dagger_rounds=1, steps=3, batch=4, warmup=2)
"""A run of half a minute on a CPU, which tests that the recipe works from end to end."""
