"""A published OpenVLA folder in, an OpenVLAPolicy out; refused as a whole if anything is wrong with it.

Layout: `config.json` (sizes, and under norm_stats the statistics of every data set trained on),
`model.safetensors` or shards with their index, `tokenizer.json` or `tokenizer.model`; and, if they are there,
`preprocessor_config.json` and `dataset_statistics.json`. The code that publishers put beside the weights is
never run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from vla_accel_ros.models.checkpoint import DTYPES, find_device
from vla_accel_ros.models.norm_stats import read_json
from vla_accel_ros.models.openvla import OpenVLA, is_unused
from vla_accel_ros.models.openvla_config import OpenVLAConfig
from vla_accel_ros.models.openvla_policy import OpenVLAPolicy
from vla_accel_ros.models.openvla_sizes import infer_openvla
from vla_accel_ros.models.openvla_stats import read_action_stats, read_pixel_norm
from vla_accel_ros.models.shards import Progress, Stored, check_table, read_table, stream
from vla_accel_ros.models.tokenizer import load_tokenizer


def is_openvla(folder: str | Path) -> bool:
    """Whether a folder's config.json says that it is an OpenVLA. Raises ValueError if that is not JSON."""
    file = Path(folder) / "config.json"
    data = read_json(file) if file.is_file() else {}
    ours = data.get("vla_accel_ros")
    return data.get("model_type") == "openvla" or (isinstance(ours, dict) and ours.get("kind") == "openvla")


def load_openvla(
    path: str | Path,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    *,
    dataset: str | None = None,
    progress: Progress | None = None,
) -> OpenVLAPolicy:
    """Load the folder `path`.

    dtype: float32 or bfloat16, of every parameter, as in the reference.
    dataset: whose statistics to un-normalise with, needed if there are several (openvla's `unnorm_key`).
    progress: called with (bytes read, bytes in all) after every tensor.
    Raises ValueError, one sentence, for everything that is missing, malformed or does not fit.
    """
    folder = Path(path)
    target = find_device(device)
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype}; use torch.float32 or torch.bfloat16.")
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; give the checkpoint's folder.")
    table = read_table(folder)
    config = read_openvla_config(folder, table)
    tokenizer = load_tokenizer(folder, config.vocab)
    stats, pixels = read_action_stats(folder, dataset), read_pixel_norm(folder)
    model = load_openvla_model(table, config, folder, target, dtype, progress)
    return OpenVLAPolicy(model, tokenizer, stats, pixels)


def load_openvla_model(
    table: Mapping[str, Stored],
    config: OpenVLAConfig,
    where: Path,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    progress: Progress | None = None,
) -> OpenVLA:
    """A model of these sizes with the weights of `table`, in eval mode and without gradients.

    where: the folder or file that errors name. Raises ValueError listing everything that does not fit.
    """
    with torch.device("meta"):
        model = OpenVLA(config)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    check_table(table, shapes, lambda name: is_unused(name, config), where)
    model.load_state_dict(stream(table, dict.fromkeys(shapes, dtype), device, progress), assign=True)
    return model.requires_grad_(False).eval()


def read_openvla_config(folder: Path, table: Mapping[str, Stored]) -> OpenVLAConfig:
    """The sizes: "vla_accel_ros" of `config.json` if it is there, else what the rest and the shapes tell."""
    file = folder / "config.json"
    data = read_json(file)
    ours = data.get("vla_accel_ros")
    try:
        if ours is not None:
            return OpenVLAConfig.from_json(ours)
        return infer_openvla({name: stored.shape for name, stored in table.items()}, data)
    except (TypeError, ValueError) as error:
        field = "" if ours is None else ", field vla_accel_ros"
        raise ValueError(f"{file}{field}: {error}") from error
