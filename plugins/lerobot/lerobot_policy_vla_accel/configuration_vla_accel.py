"""The options of the policy, which LeRobot's programs take as --policy.NAME."""

from __future__ import annotations

from dataclasses import dataclass, field

from lerobot.configs import NormalizationMode, PreTrainedConfig


@PreTrainedConfig.register_subclass("vla_accel")
@dataclass
class VlaAccelConfig(PreTrainedConfig):
    """url: of the server. keys: where it wants what, a preset of docs/guide/serve.md; its pictures are the
    last words of observation.images.NAME. token_file: holds the server's token. deadline_s: of an answer.
    n_action_steps: how many actions of a chunk are executed. rtc: whether the server continues a chunk
    (`delay` and `action_prefix`, as `vla serve` does), so that --inference.type=rtc may ask it.
    """

    url: str = "ws://127.0.0.1:8000"
    keys: str = "native"
    token_file: str = ""
    deadline_s: float = 30.0
    n_action_steps: int = 8
    rtc: bool = False
    push_to_hub: bool = False
    normalization_mapping: dict[str, NormalizationMode] = field(
        default_factory=lambda: dict.fromkeys(("VISUAL", "STATE", "ACTION"), NormalizationMode.IDENTITY)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_action_steps < 1:
            raise ValueError(f"n_action_steps is {self.n_action_steps}: give at least 1")

    def validate_features(self) -> None:
        """There is at least one picture, and a state."""
        if not self.image_features or self.robot_state_feature is None:
            raise ValueError(
                f"the inputs are {', '.join(self.input_features or {}) or 'none'}: a policy server needs "
                "observation.state and observation.images.NAME"
            )

    @property
    def observation_delta_indices(self) -> None:
        return None

    @property
    def action_delta_indices(self) -> None:
        return None

    @property
    def reward_delta_indices(self) -> None:
        return None

    def get_optimizer_preset(self) -> None:
        raise NotImplementedError("a policy server is not trained from here")

    def get_scheduler_preset(self) -> None:
        return None
