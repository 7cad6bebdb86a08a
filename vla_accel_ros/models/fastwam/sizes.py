"""Read a Fast-WAM's sizes from lerobot's `config.json` and those of Wan's VAE and text encoder.

lerobot writes all sizes of both transformers, or none if they are the published ones; the tensors are then
compared with them. A setting that changes the computation and that no published policy uses is refused, not
ignored; all that does not fit is in one error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vla_accel_ros.models.checkpoints.description import Missing
from vla_accel_ros.models.checkpoints.fields import LEROBOT, LEROBOT_FIXED, check_fields, words
from vla_accel_ros.models.checkpoints.lerobot import lerobot_cameras
from vla_accel_ros.models.encoder_sizes import T5Config, VAEConfig
from vla_accel_ros.models.fastwam.config import FASTWAM, PROMPT, ExpertConfig, FastWAMConfig
from vla_accel_ros.models.inferred import number, whole

FIELDS = LEROBOT | words("""
    action_dim proprio_dim action_horizon num_video_frames action_video_freq_ratio image_size context_len
    model_id tokenizer_model_id text_encoder_model_id base_model_id tokenizer_max_len load_text_encoder
    mot_checkpoint_mixed_attn torch_dtype prompt_template inference_seed rand_device text_cfg_scale
    negative_prompt sigma_shift fp32_attention compile_action_infer use_gradient_checkpointing
    freeze_video_expert toggle_action_dimensions video_scheduler action_scheduler loss video_dit_config
    action_dit_config
""")
FIXED: Mapping[str, Any] = {**LEROBOT_FIXED, "tiled": False}
SCHEDULER = words("train_shift infer_shift num_train_timesteps")
ACTION = words("""
    action_dim hidden_dim ffn_dim num_heads attn_head_dim num_layers text_dim freq_dim eps
    use_gradient_checkpointing fp32_attention
""")
VIDEO = ACTION | words("in_dim out_dim action_group_causal_mask_mode")
PAIRED = ("num_heads", "attn_head_dim", "num_layers", "text_dim")
VIDEO_FIXED: Mapping[str, Any] = {
    "seperated_timestep": True,
    "video_attention_mask_mode": "first_frame_causal",
    "action_conditioned": False,
}
VAE = words("""
    _diffusers_version _name_or_path base_dim decoder_base_dim dim_mult dropout in_channels latents_mean
    latents_std num_res_blocks out_channels patch_size scale_factor_spatial scale_factor_temporal
    temperal_downsample z_dim clip_output
""")
VAE_FIXED: Mapping[str, Any] = {"_class_name": "AutoencoderKLWan", "attn_scales": [], "is_residual": True}


def read_vae(data: Mapping[str, Any]) -> VAEConfig:
    """Return the sizes of diffusers' AutoencoderKLWan. Raises ValueError if a setting is unknown."""
    check_fields(data, "", VAE, VAE_FIXED)
    return VAEConfig(
        width=whole(data, "base_dim"),
        multiples=tuple(_list(data, "dim_mult")),
        blocks=whole(data, "num_res_blocks"),
        temporal=tuple(_list(data, "temperal_downsample")),
        patch=whole(data, "patch_size"),
        mean=tuple(map(float, _list(data, "latents_mean"))),
        std=tuple(map(float, _list(data, "latents_std"))),
    )


def read_lerobots(data: Mapping[str, Any], text: T5Config, vae: VAEConfig) -> FastWAMConfig:
    """Return the sizes of lerobot's config.json. Raises ValueError listing what does not fit."""
    check_settings(data)
    video, action = _part(data, "video_dit_config"), _part(data, "action_dit_config")
    patch = video.get("patch_size", [1, 2, 2])
    height, width = _list(data, "image_size", [FASTWAM.image_height, FASTWAM.image_width])
    proprio = data.get("proprio_dim", FASTWAM.state_dim)
    scheduler = _part(data, "action_scheduler")
    override = data if data.get("sigma_shift") is not None else {}
    shift = number(override, "sigma_shift", number(scheduler, "action_scheduler.infer_shift", FASTWAM.shift))
    return FastWAMConfig(
        text=text,
        vae=vae,
        video=_expert(video, "video_dit_config", FASTWAM.video),
        action=_expert(action, "action_dit_config", FASTWAM.action),
        depth=whole(video, "video_dit_config.num_layers", FASTWAM.depth),
        heads=whole(video, "video_dit_config.num_heads", FASTWAM.heads),
        head_dim=whole(video, "video_dit_config.attn_head_dim", FASTWAM.head_dim),
        patch=patch[1],
        image_height=height,
        image_width=width,
        action_dim=whole(data, "action_dim", FASTWAM.action_dim),
        state_dim=0 if proprio is None else proprio,
        horizon=whole(data, "action_horizon", FASTWAM.horizon),
        max_prompt=whole(data, "tokenizer_max_len", FASTWAM.max_prompt),
        image_names=tuple(sorted(lerobot_cameras(data))),
        template=data.get("prompt_template", PROMPT),
        shift=shift,
        time_scale=number(scheduler, "action_scheduler.num_train_timesteps", FASTWAM.time_scale),
    )


def check_settings(data: Mapping[str, Any]) -> None:
    """Raise one ValueError for all fields of lerobot's config.json that are unknown, not implemented or
    contradict each other."""
    problems = Missing()
    problems.read(check_fields, data, "", FIELDS, FIXED)
    video, action = (
        problems.read(_part, data, f"{name}_dit_config", default={}) for name in ("video", "action")
    )
    patch = problems.read(_list, video, "patch_size", [1, 2, 2], default=[1, 2, 2])
    problems.read(check_fields, video, "video_dit_config.", VIDEO | {"patch_size"}, VIDEO_FIXED)
    problems.read(check_fields, action, "action_dit_config.", ACTION, {})
    for name in ("video_scheduler", "action_scheduler"):
        scheduler = problems.read(_part, data, name, default={})
        problems.read(check_fields, scheduler, f"{name}.", SCHEDULER, {})
    for name in PAIRED:
        if name in video and name in action and video[name] != action[name]:
            problems.sentences.append(
                f"{name} is {video[name]!r} in video_dit_config and {action[name]!r} in action_dit_config; "
                "actions attend to the video layer by layer, so make them equal."
            )
    if len(patch) != 3 or patch[0] != 1 or patch[1] != patch[2]:
        problems.sentences.append(f"video_dit_config.patch_size is {patch!r}; give [1, n, n].")
    if len(problems.read(_list, data, "image_size", [1, 1], default=[1, 1])) != 2:
        problems.sentences.append(f"image_size is {data['image_size']!r}; give height and width.")
    problems.raise_all()


def _expert(data: Mapping[str, Any], where: str, published: ExpertConfig) -> ExpertConfig:
    return ExpertConfig(
        width=whole(data, f"{where}.hidden_dim", published.width),
        mlp=whole(data, f"{where}.ffn_dim", published.mlp),
        time_dim=whole(data, f"{where}.freq_dim", published.time_dim),
        eps=number(data, f"{where}.eps", published.eps),
    )


def _part(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = data.get(name)
    if part is not None and not isinstance(part, dict):
        raise ValueError(f"{name} is {part!r}; it must be an object, or null for the published sizes.")
    return part or {}


def _list(data: Mapping[str, Any], name: str, default: list[Any] | None = None) -> list[Any]:
    value = data.get(name, default)
    if not isinstance(value, list):
        raise ValueError(f"{name} is {value!r}; it must be a list.")
    return value
