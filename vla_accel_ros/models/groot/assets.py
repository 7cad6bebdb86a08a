"""Find the small files of a GR00T folder, whichever program saved it, and refuse fields that are not known.

NVIDIA saves the network's sizes in `config.json`, but not its backbone's: those are of the model that
`model_name` names (N1.7), or in Eagle's assets (N1.5). lerobot saves its own `config.json`; the network's is
in the folder that `base_model_path` names. Each is looked for in the folder, then beside it. What is
published under a known name need not be there. Only JSON, vocabularies and statistics are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla_accel_ros.models.checkpoints.fields import check_fields, part, words
from vla_accel_ros.models.checkpoints.formats import Contents
from vla_accel_ros.models.groot.config import N1_5, N1_7
from vla_accel_ros.models.inferred import whole
from vla_accel_ros.models.json_file import read_json

MODEL_TYPES = {"Gr00tN1d7": N1_7, "gr00t_n1_5": N1_5}
LEROBOT, ROOT = "groot", "_groot_model."
"""lerobot's name of the policy, and what its names of tensors begin with."""
EAGLE, EAGLE_REPO = "eagle_assets", "eagle2hg-processor-groot-n1p5"
BACKBONE, COSMOS = "backbone", "Cosmos-Reason2-2B"
FIELDS = words("""
    _name_or_path action_dim action_head_cfg action_horizon activation_fn architectures attention_bias
    attention_head_dim attn_dropout auto_map backbone_cfg backbone_embedding_dim
    backbone_trainable_params_fp32 color_jitter_params compute_dtype crop_fraction cross_attention_dim
    diffusion_model_cfg dropout dtype eagle_path extra_augmentation_config final_dropout formalize_language
    hidden_size image_crop_size image_target_size input_embedding_dim letter_box_transform load_bf16
    max_action_dim max_num_embodiments max_num_positional_embeddings max_seq_len max_state_dim model_dtype
    model_name model_revision model_type noise_beta_alpha noise_beta_beta noise_s num_attention_heads
    num_inference_timesteps num_layers num_target_vision_tokens num_timestep_buckets output_dim
    random_rotation_angle rtc_ramp_rate select_layer shortest_image_edge state_additive_noise_scale
    state_dropout_prob torch_dtype transformers_version tune_diffusion_model tune_llm tune_projector
    tune_top_llm_layers tune_visual tune_vlln upcast_attention use_albumentations_transforms
    use_flash_attention use_percentiles use_relative_action vl_self_attention_cfg
""")
"""Fields of NVIDIA's config.json and its parts that are read here or concern training."""
FIXED: Mapping[str, Any] = {
    "add_pos_embed": True,
    "apply_sincos_state_encoding": False,
    "attend_text_every_n_blocks": 2,
    "backbone_model_type": "qwen",
    "exclude_state": False,
    "interleave_self_attention": True,
    "norm_type": "ada_norm",
    "positional_embeddings": None,
    "project_to_dim": None,
    "reproject_vision": False,
    "state_history_length": 1,
    "strict_action_padding_mask": False,
    "use_alternate_vl_dit": True,
    "use_mean_std": False,
    "use_vlln": True,
}
PARTS = ("backbone_cfg", "action_head_cfg", "diffusion_model_cfg", "vl_self_attention_cfg")
TRANSFORM, LIBERO = "action_decode_transform", "libero"
"""lerobot's field for what becomes of decoded actions, and its one value: see units.Units.gripper."""
LEROBOT_FIELDS = words("""
    action_decode_transform
    action_feature_names balance_dataset_weights balance_trajectory_weights base_model_path batch_size
    chunk_size dataloader_num_workers dataset_paths device embodiment_tag image_size input_features license
    lora_alpha lora_dropout lora_full_model max_action_dim max_state_dim max_steps model_params_fp32
    model_version n_action_steps n_obs_steps normalization_mapping num_inference_timesteps optimizer_betas
    optimizer_eps optimizer_lr optimizer_weight_decay output_dir output_features pretrained_path
    pretrained_revision private push_to_hub relative_exclude_joints repo_id report_to resume rtc_config
    rtc_ramp_rate save_steps tags tokenizer_assets_repo tune_diffusion_model tune_llm tune_projector
    tune_top_llm_layers tune_visual tune_vlln type use_amp use_bf16 use_flash_attention use_peft video_backend
    warmup_ratio
""")
LEROBOT_FIXED: Mapping[str, Any] = {
    "lora_rank": 0,
    "use_relative_actions": False,
}
_HEAD: Mapping[str, Any] = {
    "diffusion_model_cfg": {"num_attention_heads": 32, "attention_head_dim": 48},
    "vl_self_attention_cfg": {"num_attention_heads": 32, "attention_head_dim": 64},
    "num_inference_timesteps": 4,
    "num_timestep_buckets": 1000,
}
PUBLISHED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    N1_7: ("nvidia/gr00t-n1.7", {**_HEAD, "action_horizon": 40, "model_name": f"nvidia/{COSMOS}"}),
    N1_5: ("nvidia/gr00t-n1.5", {"action_head_cfg": {**_HEAD, "action_horizon": 16}}),
}
"""How the names of the public base models begin, in small letters, and what their config.json says and no
tensor shows."""
COSMOS_CONFIG: Mapping[str, Any] = {
    "image_token_id": 151655,
    "text_config": {"rope_parameters": {"rope_theta": 5_000_000, "mrope_section": [24, 20, 20]}},
    "vision_config": {"num_heads": 16, "deepstack_visual_indexes": [5, 11, 17]},
}
"""The same of Cosmos-Reason2-2B."""


@dataclass(frozen=True)
class Assets:
    """kind: the version. root: what names of tensors begin with. head: NVIDIA's fields of the action head.
    backbone: config.json of the backbone; layers: how many of its layers are kept, None = all. words: the
    folder with its tokenizer, None without."""

    kind: str
    root: str
    head: Mapping[str, Any]
    backbone: Mapping[str, Any]
    layers: int | None
    words: Path | None


def read_assets(contents: Contents) -> Assets:
    """Return the small files. Raises ValueError if one is missing, or has an unknown field."""
    folder, kind = contents.folder, _kind(contents)
    base, network = folder, contents.config
    root = ROOT if is_lerobots(contents) else ""
    if root:
        check_fields(contents.config, f"{folder / 'config.json'}: ", LEROBOT_FIELDS, LEROBOT_FIXED)
        if (transform := contents.config.get(TRANSFORM)) not in (None, LIBERO):
            raise ValueError(f"{folder / 'config.json'}: {TRANSFORM} is {transform!r}; known is {LIBERO!r}.")
        base, network = (folder, {}) if contents.kind else _base(contents, kind)
    check_parts(network, f"{base / 'config.json'}: ")
    homes = (folder, base, folder.parent, base.parent)
    if kind == N1_5:
        eagle = _first([home / name for home in homes for name in (EAGLE, EAGLE_REPO)])
        if eagle is None:
            raise ValueError(
                f"{folder} has no {EAGLE}, whose config.json has the backbone's sizes; copy the files of "
                f"lerobot/{EAGLE_REPO} there."
            )
        head, layers = part(network, "action_head_cfg", {}), part(network, "backbone_cfg.select_layer")
        return Assets(kind, root, head, read_json(eagle / "config.json"), _kept(layers), eagle)
    name = str(network.get("model_name", BACKBONE))
    cosmos = _first([home / part for home in homes[:2] for part in (name, BACKBONE)])
    if cosmos is None and not name.endswith(COSMOS):
        raise ValueError(f"{folder} has no {BACKBONE}/config.json; copy the small files of {name} there.")
    backbone = COSMOS_CONFIG if cosmos is None else read_json(cosmos / "config.json")
    layers = _kept(network.get("select_layer"))
    return Assets(kind, root, network, backbone, layers, cosmos or _first([folder], "tokenizer.json"))


def small_files(config: Mapping[str, Any]) -> tuple[str, str, tuple[str, ...]] | None:
    """Where the small files of a GR00T's backbone are published, the folder for them, and their names;
    None for the config.json of another family."""
    is_new = config.get("model_type") == "Gr00tN1d7" or config.get("type") == LEROBOT
    assets = config.get("tokenizer_assets_repo")
    if config.get("model_type") == "gr00t_n1_5" or assets:
        repository = str(assets or f"lerobot/{EAGLE_REPO}")
        return repository, EAGLE, ("config.json", "vocab.json", "merges.txt", "added_tokens.json")
    if not is_new:
        return None
    names = ("config.json", "preprocessor_config.json", "tokenizer.json")
    return str(config.get("model_name", f"nvidia/{COSMOS}")), BACKBONE, names


def is_lerobots(contents: Contents) -> bool:
    """Whether lerobot saved the folder; its first versions did not write their type."""
    return contents.config.get("type") == LEROBOT or any(name.startswith(ROOT) for name in contents.tensors)


def check_parts(data: Mapping[str, Any], where: str) -> None:
    """Raise ValueError for a field, also of a part, that is unknown or not implemented."""
    check_fields(data, where, FIELDS, FIXED)
    for name in PARTS:
        if isinstance(data.get(name), dict):
            check_parts(data[name], f"{where}{name}.")


def _kind(contents: Contents) -> str:
    if contents.kind:
        return contents.kind
    if not is_lerobots(contents):
        return MODEL_TYPES[str(contents.config.get("model_type"))]
    return N1_5 if any(".eagle_model." in name for name in contents.tensors) else N1_7


def _base(contents: Contents, kind: str) -> tuple[Path, Mapping[str, Any]]:
    """The folder and the config.json of the network that lerobot trained further."""
    folder, name = contents.folder, str(contents.config.get("base_model_path"))
    base, (public, published) = folder / Path(name).expanduser(), PUBLISHED[kind]
    where = f"{folder / 'config.json'}: base_model_path is {name!r}"
    if (base / "config.json").is_file():
        config = read_json(base / "config.json")
        if MODEL_TYPES.get(str(config.get("model_type"))) != kind:
            raise ValueError(
                f"{where}, whose model_type is {config.get('model_type')!r}; name the {kind} it was."
            )
        return base, config
    if name.lower().startswith(public):
        return folder, published
    raise ValueError(
        f"{where}, which is no folder here; the network's sizes are only in its config.json: copy that "
        "folder's small files, and name it."
    )


def _kept(layers: Any) -> int | None:
    """select_layer; -1 is all."""
    return None if layers in (None, -1) else whole({"select_layer": layers}, "select_layer")


def _first(folders: list[Path], file: str = "config.json") -> Path | None:
    return next((folder for folder in folders if (folder / file).is_file()), None)
