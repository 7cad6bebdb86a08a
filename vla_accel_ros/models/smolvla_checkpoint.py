"""A folder that lerobot saved a SmolVLA in, and the weights of one.

Layout: `config.json` (type smolvla), `model.safetensors` with every name behind `model.`, the two processor
files with the statistics they name, and `tokenizer.json`, which lerobot takes from the hub and which must be
copied from the language model named in `config.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from vla_accel_ros.models.checkpoint import DTYPES, find_device
from vla_accel_ros.models.committed import read_trained_delay
from vla_accel_ros.models.lerobot_processors import read_lerobot_normalizers
from vla_accel_ros.models.norm_stats import read_json
from vla_accel_ros.models.processing import Normalizer
from vla_accel_ros.models.shards import Progress, Stored, check_table, read_table, stream
from vla_accel_ros.models.smolvla import UNUSED, SmolVLA
from vla_accel_ros.models.smolvla_config import SmolVLAConfig
from vla_accel_ros.models.smolvla_policy import SmolVLAPolicy
from vla_accel_ros.models.smolvla_sizes import infer_smolvla
from vla_accel_ros.models.tokenizer import load_tokenizer

ROOT = "model."
NEW_LINE = "smolvla_new_line_processor"


def is_smolvla(folder: str | Path) -> bool:
    """Whether a folder's config.json says that it is a SmolVLA. Raises ValueError if that is not JSON."""
    file = Path(folder) / "config.json"
    data = read_json(file) if file.is_file() else {}
    ours = data.get("vla_accel_ros")
    return data.get("type") == "smolvla" or (isinstance(ours, dict) and ours.get("kind") == "smolvla")


def load_smolvla(
    path: str | Path,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    delta_mask: np.ndarray | None = None,
    *,
    normalize: bool = True,
    progress: Progress | None = None,
) -> SmolVLAPolicy:
    """Load the folder `path`.

    dtype: float32 or bfloat16 (some parts stay float32, as in lerobot).
    delta_mask: bool [D], see Policy; by default every action of the policy is an absolute one.
    normalize: False for a policy without statistics, whose numbers are in the units of its training.
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
    config, data = read_smolvla_config(folder, table), read_json(folder / "config.json")
    if not (folder / "tokenizer.json").is_file():
        raise ValueError(
            f"{folder} has no tokenizer.json, which lerobot does not save; copy that of "
            f"{data.get('vlm_model_name', 'its language model')} into the folder."
        )
    tokenizer = load_tokenizer(folder, config.vocab)
    state, actions = Normalizer.identity(), Normalizer.identity()
    if normalize:
        state, actions = read_smolvla_normalizers(folder)
    if delta_mask is None:
        delta_mask = np.zeros(min(actions.size, config.action_dim) or config.action_dim, dtype=np.bool_)
    try:
        delay = read_trained_delay(data, config.horizon)
    except ValueError as error:
        raise ValueError(f"{folder / 'config.json'}: {error}") from error
    model = load_smolvla_model(table, config, folder, target, dtype, progress)
    return SmolVLAPolicy(model, tokenizer, state, actions, np.asarray(delta_mask), trained_delay=delay)


def read_smolvla_normalizers(folder: Path) -> tuple[Normalizer, Normalizer]:
    """(state, actions) of the folder, see read_lerobot_normalizers."""
    return read_lerobot_normalizers(folder, known=(NEW_LINE,))


def load_smolvla_model(
    table: Mapping[str, Stored],
    config: SmolVLAConfig,
    where: Path,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    progress: Progress | None = None,
) -> SmolVLA:
    """A model of these sizes with the weights of `table`, in eval mode and without gradients.

    where: the folder or file that errors name. Raises ValueError listing everything that does not fit.
    """
    with torch.device("meta"):
        model = SmolVLA(config).set_precision(dtype)
    parameters = {ROOT + name: parameter for name, parameter in model.named_parameters()}
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    check_table(table, shapes, lambda name: name == ROOT + UNUSED, where)
    dtypes = {name: parameter.dtype for name, parameter in parameters.items()}
    loaded = stream(table, dtypes, device, progress)
    model.load_state_dict({name.removeprefix(ROOT): tensor for name, tensor in loaded.items()}, assign=True)
    return model.requires_grad_(False).eval()


def read_smolvla_config(folder: Path, table: Mapping[str, Stored]) -> SmolVLAConfig:
    """The sizes: "vla_accel_ros" of `config.json` if it is there, else what the rest and the shapes tell."""
    file = folder / "config.json"
    data = read_json(file)
    ours = data.get("vla_accel_ros")
    try:
        if ours is not None:
            return SmolVLAConfig.from_json(ours)
        return infer_smolvla({name: stored.shape for name, stored in table.items()}, data)
    except (TypeError, ValueError) as error:
        field = "" if ours is None else ", field vla_accel_ros"
        raise ValueError(f"{file}{field}: {error}") from error
