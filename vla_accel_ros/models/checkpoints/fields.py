"""Which fields a published JSON file may have: the harmless ones, and those with one known value.

A field that nobody here has heard of may change what a policy does, and so may a field whose value is not
implemented. Both are refused by name. The lists of a reader come from the public programs that write its
files, over all their versions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

OURS, PROVENANCE, RECIPE = "vla_accel_ros", "provenance", "training"
"""Our own fields of config.json: the sizes, where a converted folder comes from, and how `vla demo-policy`
trained."""


def words(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


LEROBOT = words("""
    type input_features output_features normalization_mapping device use_amp push_to_hub repo_id private tags
    license pretrained_path pretrained_revision chunk_size n_action_steps max_state_dim max_action_dim
    empty_cameras tokenizer_max_length num_steps num_inference_steps use_cache rtc_config
    rtc_training_max_delay freeze_vision_encoder train_expert_only train_state_proj gradient_checkpointing
    compile_model compile_mode optimizer_lr optimizer_betas optimizer_eps optimizer_weight_decay
    optimizer_grad_clip_norm scheduler_warmup_steps scheduler_decay_steps scheduler_decay_lr
""")
"""Fields of every policy of lerobot 0.1 to 0.6 that are read here, or concern training, its device or the
hub."""
LEROBOT_FIXED: Mapping[str, Any] = {
    "n_obs_steps": 1,
    "min_period": 4e-3,
    "max_period": 4.0,
    "use_peft": False,
    "adapt_to_pi_aloha": False,
    "use_delta_joint_actions_aloha": False,
}
"""Fields of lerobot that change actions, with the value that is implemented."""


def check_fields(
    data: Mapping[str, Any], where: str, known: Collection[str], fixed: Mapping[str, Any]
) -> None:
    """Raise ValueError if `data` has a field that is neither in `known` nor in `fixed`, or one with another
    value than `fixed` gives.

    where: begins the sentence, such as "/path/config.json: ".
    """
    for name, value in fixed.items():
        if data.get(name, value) != value:
            raise ValueError(
                f"{where}{name} is {data[name]!r}; only {value!r} is known. It changes the actions: train or "
                "export the policy without it."
            )
    unknown = sorted(set(data) - set(known) - set(fixed) - {OURS, PROVENANCE, RECIPE})
    if unknown:
        raise ValueError(
            f"{where}no public version of this file has {', '.join(unknown)}, which may change the actions; "
            "remove it from the file if the policy was trained without it."
        )


def part(data: Any, path: str, default: Any = None) -> Any:
    """Return the value at a path of fields such as `text_config.rms_norm_eps`, or the default."""
    for field in path.split("."):
        data = data.get(field) if isinstance(data, Mapping) else None
    return default if data is None else data
