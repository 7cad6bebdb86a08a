"""The authors' own files of a Fast-WAM: one of torch.save with tensors alone, and `dataset_stats.json`.

Neither has the settings of the training. Which of their two data sets it was says the rest (trained_as:
libero or robotwin); numbers that are not those of their published configuration follow it (`horizon=8`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from vla_accel_ros.models.checkpoints.fields import part
from vla_accel_ros.models.checkpoints.formats import Contents
from vla_accel_ros.models.checkpoints.shards import inside
from vla_accel_ros.models.encoder_sizes import T5Config, VAEConfig
from vla_accel_ros.models.fastwam.config import LIBERO, ROBOTWIN, ExpertConfig, FastWAMConfig
from vla_accel_ros.models.inferred import Shapes, axes, depth, heads, tensors_of
from vla_accel_ros.models.json_file import read_json
from vla_accel_ros.models.processing.conventions import Normalizer
from vla_accel_ros.models.processing.norm_stats import check_ordered, finite_numbers

STATISTICS = "dataset_stats.json"
CAMERAS = {LIBERO: ("image", "wrist_image"), ROBOTWIN: ("cam_high", "cam_left_wrist", "cam_right_wrist")}
NUMBERS = {
    LIBERO: {"image_height": 224, "image_width": 448, "horizon": 32, "max_prompt": 128, "head_dim": 128},
    ROBOTWIN: {"image_height": 384, "image_width": 320, "horizon": 32, "max_prompt": 128, "head_dim": 128},
}
KEYS = "mot.layers.0.blocks.video.self_attn.k.weight"
REACH = 5.0
"""To what they cut normalised joints."""
STD_EPS, STILL = 1e-8, 1e-4
"""What they add to a deviation, and the range below which a number is only shifted, to begin at 0."""


def weight_file(contents: Contents) -> Path | None:
    """The file of tensors, if these are the authors' files. Raises ValueError if there are several."""
    folder = contents.folder
    files = sorted(folder.glob("*.pt")) if (folder / STATISTICS).is_file() and not contents.tensors else []
    if len(files) > 1:
        raise ValueError(f"{folder} has {[file.name for file in files]}; keep the one to be run.")
    return inside(folder, files[0]) if files else None


def read_answer(contents: Contents) -> tuple[str, dict[str, int]]:
    """Return the data set and its numbers. Raises ValueError saying what to give if trained_as is neither."""
    name, *words = contents.trained_as.split() or [""]
    numbers = dict(NUMBERS.get(name, {}))
    changes = dict(word.partition("=")[::2] for word in words)
    if changes.keys() <= numbers.keys() and all(value.isdecimal() for value in changes.values()):
        numbers |= {key: int(value) for key, value in changes.items()}
    else:
        numbers = {}
    if not numbers:
        raise ValueError(
            f"{contents.folder}: no file of the authors says what it was trained for; trained_as is "
            f"{contents.trained_as!r}, give {LIBERO} or {ROBOTWIN}, and after it what is not as published: "
            f"{', '.join(f'{key}=N' for key in NUMBERS[LIBERO])}."
        )
    return name, numbers


@tensors_of("a file that Fast-WAM's training saved")
def infer(shapes: Shapes, contents: Contents, text: T5Config, vae: VAEConfig) -> FastWAMConfig:
    """Return the sizes of the checkpoint with these tensors, by our names. Raises ValueError if a tensor is
    missing, or nobody says what it was trained for."""
    name, numbers = read_answer(contents)
    wide = axes(shapes, KEYS, 2)[0]
    _, action_dim = axes(shapes, "mot.mixtures.action.action_encoder.weight", 2)
    proprio = shapes.get("proprio_encoder.weight")
    settings: dict[str, Any] = {"picture": name, "image_names": CAMERAS[name], **numbers}
    settings["heads"] = heads(wide, settings["head_dim"], KEYS)
    return FastWAMConfig(
        text=text,
        vae=vae,
        video=_expert(shapes, "video"),
        action=_expert(shapes, "action"),
        depth=depth(shapes, "mot.layers."),
        patch=axes(shapes, "mot.mixtures.video.patch_embedding.weight", 5)[-1],
        action_dim=action_dim,
        state_dim=0 if proprio is None else proprio[-1],
        **settings,
    )


def _expert(shapes: Shapes, name: str) -> ExpertConfig:
    mlp, width = axes(shapes, f"mot.layers.0.blocks.{name}.ffn.0.weight", 2)
    return ExpertConfig(width, mlp, axes(shapes, f"mot.mixtures.{name}.time_embedding.0.weight", 2)[1])


def read_units(folder: Path, picture: str) -> tuple[Normalizer, Normalizer, tuple[int, ...]]:
    """Return (state, actions, toggled actions). Raises ValueError if a statistic is malformed."""
    state, actions = (_normalizer(kind, picture, folder / STATISTICS) for kind in ("state", "action"))
    return state, actions, (actions.size - 1,) if picture == LIBERO else ()


def _normalizer(kind: str, picture: str, file: Path) -> Normalizer:
    entry, where = part(read_json(file), f"{kind}.default"), f"{file}: {kind}.default"
    names = ("global_min", "global_max") if picture == LIBERO else ("global_mean", "global_std")
    first, second = (
        finite_numbers(part(entry, name), f"{where}.{name}").astype(np.float32) for name in names
    )
    check_ordered(first, second, names, where)
    if picture != LIBERO:
        return Normalizer(first, second + np.float32(STD_EPS))
    still = second - first < STILL
    span = np.where(still, np.float32(2.0), second - first)
    return Normalizer(np.where(still, first - np.float32(1.0), first), span, gain=2.0, offset=-1.0)
