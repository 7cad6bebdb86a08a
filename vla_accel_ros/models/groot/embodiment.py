"""Read what a GR00T folder says of an embodiment: its number, cameras, units, and how images are prepared.

NVIDIA saves `processor_config.json` (groups, cameras and images of every embodiment), `statistics.json` and
`embodiment_id.json`; lerobot saves the same of one embodiment in its two processors, or flat statistics of a
data set. A tag names the embodiment. The statistics and number of another one are never taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vla_accel_ros.models.checkpoints.fields import check_fields, part, words
from vla_accel_ros.models.checkpoints.formats import Contents
from vla_accel_ros.models.checkpoints.lerobot import features_of
from vla_accel_ros.models.groot.assets import LIBERO, TRANSFORM, Assets
from vla_accel_ros.models.groot.config import N1_5
from vla_accel_ros.models.groot.pixels import Geometry
from vla_accel_ros.models.groot.statistics import flat_units, group_units, names_of, steps_of
from vla_accel_ros.models.groot.units import Units
from vla_accel_ros.models.inferred import whole
from vla_accel_ros.models.json_file import read_json
from vla_accel_ros.models.processing.lerobot_processors import AFTER, BEFORE, TRANSPORT, read_steps
from vla_accel_ros.models.processing.ranges import Range

PROCESSOR, STATISTICS, NUMBERS = "processor_config.json", "statistics.json", "embodiment_id.json"
NUMBERS_1_5 = {
    "so100": 2,
    "unitree_g1": 3,
    "oxe_droid": 17,
    "gr1": 24,
    "agibot_genie1": 26,
    "new_embodiment": 31,
}
"""Numbers of N1.5's embodiments, which NVIDIA's folders do not have."""
CAMERAS_1_5 = ["camera1", "camera2", "camera3"]
"""Cameras of an N1.5 folder that names none."""
PACKS = ("groot_n1_7_pack_inputs_v1", "groot_pack_inputs_v3")
ENCODES = ("groot_n1_7_vlm_encode_v1", "groot_eagle_encode_v3")
DECODE = "groot_n1_7_action_decode_v1"
UNPACKS = {f"groot_action_unpack_unnormalize_v{version}" for version in (1, 2)}
STEPS = {*PACKS, *ENCODES, "groot_eagle_collate_v3", DECODE, *UNPACKS, *TRANSPORT}
DECIDED = words("action_decode_transform libero_gripper_action libero_gripper_binarize")
"""Fields of steps that lerobot replaces by what config.json says."""
FIELDS = words("""
    action_horizon clip_normalized_action clip_outliers color_jitter_params crop_fraction device
    embodiment_mapping embodiment_tag env_action_dim extra_augmentation_config formalize_language
    image_crop_size image_target_size letter_box_transform max_action_dim max_action_horizon max_state_dim
    modality_config modality_configs model_name model_revision random_rotation_angle raw_stats
    shortest_image_edge state_dropout_prob tokenizer_assets_repo training transformers_loading_kwargs
    use_albumentations use_percentiles use_relative_action valid_action_horizon video_modality_keys
""")
"""Fields of NVIDIA's processor and of lerobot's steps that are read here or concern training."""
FIXED: Mapping[str, Any] = {
    "apply_sincos_state_encoding": False,
    "exclude_state": False,
    "language_key": "task",
    "model_type": "qwen",
    "normalize_min_max": True,
    "state_horizon": 1,
    "use_mean_std": False,
    "video_horizon": 1,
}
LEAST_PIXELS, MOST_PIXELS = 65536, 16777216
"""Of an image, as Qwen3-VL takes it."""

QWEN: Mapping[str, Any] = {
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
    "resample": 3,
    "temporal_patch_size": 2,
}
"""What the backbone's own program does with every image; none is published otherwise."""
SWITCHES = words("clip_outliers formalize_language letter_box_transform use_albumentations use_percentiles")
"""Fields that are true or false; absent or null is lerobot's default."""


@dataclass(frozen=True)
class Settings:
    """What a folder says beside the network. tag, number: of the embodiment; tags: of all that it has.
    cameras: the embodiment's, in order; all_cameras, views: of all, and the most of one. formal: whether
    instructions are reduced to small letters."""

    tag: str
    number: int
    tags: tuple[str, ...]
    cameras: tuple[str, ...]
    all_cameras: tuple[str, ...]
    views: int
    units: Units
    geometry: Geometry
    formal: bool


@dataclass(frozen=True)
class _Source:
    """The settings in NVIDIA's form. where: the file, for errors. fields: of all steps. modalities,
    statistics, numbers: by embodiment. flat: units of a data set's statistics instead of those of groups."""

    where: str
    fields: Mapping[str, Any]
    modalities: Mapping[str, Any]
    statistics: Mapping[str, Any]
    numbers: Mapping[str, Any]
    flat: Units | None = None


def read_settings(
    contents: Contents, assets: Assets, tag: str | None = None, normalize: bool = True
) -> Settings:
    """Return the settings of an embodiment. tag: None = the only one. normalize: False for units that pass
    as they are; then the first of several may do. Raises ValueError if the folder has several and no tag
    is given, or if anything is missing or unknown."""
    source = _read_source(contents, assets)
    where, tags = source.where, tuple(source.modalities)
    for name in sorted(SWITCHES):
        if not isinstance(source.fields.get(name), bool | None):
            raise ValueError(f"{where}: {name} is {source.fields[name]!r}; it must be true or false.")
    selected = tags[0] if tag is None and (len(tags) == 1 or not normalize) else tag
    if selected not in tags:
        raise ValueError(
            f"{where}: the embodiment is {tag!r}; give one of {', '.join(tags)} as statistics "
            "(--statistics on the command line)."
        )
    number = source.numbers.get(selected)
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ValueError(
            f"{where}: the embodiment '{selected}' has no number, only {sorted(source.numbers)} have."
        )
    cameras = {name: names_of(modality, "video", where) for name, modality in source.modalities.items()}
    nothing = Range(np.zeros(0, np.float32), np.zeros(0, np.float32))
    units = Units(nothing, nothing, steps=steps_of(source.modalities[selected]))
    if normalize:
        units = source.flat or group_units(
            source.modalities[selected],
            source.statistics.get(selected),
            source.fields,
            f"{where}: {selected}",
        )
    return Settings(
        selected,
        number,
        tags,
        cameras[selected],
        tuple(dict.fromkeys(name for names in cameras.values() for name in names)),
        max(map(len, cameras.values())),
        units,
        _geometry(contents, assets, source),
        bool(source.fields.get("formalize_language", assets.kind != N1_5)),
    )


def _read_source(contents: Contents, assets: Assets) -> _Source:
    if assets.root:
        return _from_lerobot(contents)
    folder, cameras = contents.folder, {"video": {"modality_keys": CAMERAS_1_5}}
    if assets.kind == N1_5:
        return _Source(str(folder), {}, dict.fromkeys(NUMBERS_1_5, cameras), {}, NUMBERS_1_5)
    files = [folder / name for name in (PROCESSOR, STATISTICS, NUMBERS)]
    if absent := [file.name for file in files if not file.is_file()]:
        raise ValueError(
            f"{folder} has no {' and no '.join(absent)}; copy them from the folder of its training."
        )
    processor, statistics, numbers = map(read_json, files)
    fields, where = part(processor, "processor_kwargs", {}), f"{files[0]}"
    check_fields(fields, f"{where}: processor_kwargs.", FIELDS, FIXED)
    modalities = part(fields, "modality_configs")
    if not isinstance(modalities, dict) or not modalities:
        raise ValueError(
            f"{where}: processor_kwargs.modality_configs must describe the embodiments; copy it again."
        )
    return _Source(where, fields, modalities, statistics, numbers)


def _from_lerobot(contents: Contents) -> _Source:
    """The settings of lerobot's processors, whose fields are those of NVIDIA's; both say some of them."""
    files, fields, names = [contents.folder / file for file in (BEFORE, AFTER)], dict[str, Any](), set[str]()
    where, packs = str(files[0]), None
    for file in files:
        for step in read_steps(file):
            if step.name not in STEPS:
                raise ValueError(f"{file} has the step {step.name}, which is not known here.")
            names.add(step.name)
            if step.name in TRANSPORT:
                continue
            config = {key: value for key, value in step.config.items() if key not in DECIDED}
            if config.get("video_horizon", 1) is None:  # lerobot counts no frames then, and takes one
                del config["video_horizon"]
            check_fields(config, f"{file}, {step.name}.", FIELDS, FIXED)
            if odd := [key for key in fields.keys() & config.keys() if fields[key] != config[key]]:
                raise ValueError(
                    f"{file}, {step.name}: {odd[0]} differs from that of another step; copy both again."
                )
            fields |= {key: value for key, value in config.items() if key != "device"}
            packs = step if step.name in PACKS else packs
    if packs is None or not names & {*ENCODES} or not names & {DECODE, *UNPACKS}:
        raise ValueError(
            f"{where} and {AFTER} have the steps {sorted(names)}; copy those of its own training."
        )
    tag, numbers = str(fields.get("embodiment_tag")), fields.get("embodiment_mapping")
    modality, flat = fields.get("modality_config"), None
    libero = contents.config.get(TRANSFORM) == LIBERO
    fields[TRANSFORM] = LIBERO if libero else None
    if DECODE not in names:  # trained with the statistics of a data set
        clips = PACKS[0] in names
        steps = fields.get("valid_action_horizon") if clips else None
        flat = flat_units(files[0], packs, clips, steps, libero)
        modality = {"video": {"modality_keys": fields.get("video_modality_keys") or _cameras(contents)}}
    numbers = numbers if isinstance(numbers, dict) else {}
    return _Source(where, fields, {tag: modality}, {tag: fields.get("raw_stats")}, numbers, flat)


def _geometry(contents: Contents, assets: Assets, source: _Source) -> Geometry:
    fields, vision = source.fields, part(assets.backbone, "vision_config", {})
    if assets.kind == N1_5:
        side = whole(vision, "vision_config.image_size")
        return Geometry(side, (side, side))
    sizes = fields.get("image_target_size") or [fields.get("shortest_image_edge")]
    height, width = (_sides(sizes, f"{source.where}: image_target_size") * 2)[:2]
    edge = whole(fields, f"{source.where}: fields.shortest_image_edge", height)
    crop, size = fields.get("crop_fraction"), fields.get("image_crop_size")
    if crop is None and size:
        crop = _sides(size, f"{source.where}: image_crop_size")[0] / height
    if crop is not None and not (type(crop) in (int, float) and 0 < crop <= 1):
        raise ValueError(f"{source.where}: crop_fraction is {crop!r}; it must be a share of the image.")
    file = (assets.words or contents.folder) / "preprocessor_config.json"
    pixels = read_json(file) if file.is_file() else {}
    for name, known in QWEN.items():
        if pixels.get(name, known) != known:
            raise ValueError(f"{file}: {name} is {pixels[name]!r}; only {known!r} is known.")
    fewest, greatest = (
        whole({end: part(pixels, f"size.{end}", part(pixels, old, most))}, f"{file}: size.{end}")
        for end, old, most in (
            ("shortest_edge", "min_pixels", LEAST_PIXELS),
            ("longest_edge", "max_pixels", MOST_PIXELS),
        )
    )
    block = whole(vision, "vision_config.patch_size", 16) * whole(
        vision, "vision_config.spatial_merge_size", 2
    )
    area, letterbox = fields.get("use_albumentations"), fields.get("letter_box_transform")
    return Geometry(edge, (height, width), crop, bool(area), bool(letterbox), block, fewest, greatest)


def _sides(value: Any, where: str) -> list[int]:
    """One or two sides in pixels. Raises ValueError for anything else."""
    sides = value if isinstance(value, list) and 1 <= len(value) <= 2 else [value]
    return [whole({"size": side}, f"{where}.size") for side in sides]


def _cameras(contents: Contents) -> list[str]:
    """The cameras that lerobot's config.json names, in the order that it feeds them."""
    where = f"{contents.folder / 'config.json'}: "
    names = sorted(features_of(contents.config, "input_features", "VISUAL", where))
    return [name.removeprefix("observation.").removeprefix("images.") for name in names]
