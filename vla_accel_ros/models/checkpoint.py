"""A checkpoint folder in, a Policy out; refused as a whole if anything is wrong with it.

Layout: `model.safetensors` (openpi's names), `config.json` (our sizes under "vla_accel_ros"; without them the
sizes are read off the tensors), `assets/<id>/norm_stats.json`, `tokenizer.json` or `tokenizer.model`. Names
and shapes are compared with the model from the file's header before a single weight is read, and every
difference is in one error. Weights then go straight to their device and dtype. Pickled files are never
opened.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from vla_accel_ros.models.committed import read_trained_delay
from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.models.infer_config import infer_config
from vla_accel_ros.models.norm_stats import read_json, read_normalizers
from vla_accel_ros.models.pi import Pi
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.models.processing import Normalizer
from vla_accel_ros.models.shards import open_weights
from vla_accel_ros.models.tokenizer import load_tokenizer

DTYPES = (torch.float32, torch.bfloat16)
LM_HEAD = "paligemma_with_expert.paligemma.lm_head.weight"
EMBED_TOKENS = "paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"
UNUSED = frozenset({"paligemma_with_expert.gemma_expert.lm_head.weight"})


def load_policy(
    path: str | Path,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    delta_mask: np.ndarray | None = None,
    *,
    asset: str | None = None,
    normalize: bool = True,
    prompt_state: str = "own",
) -> Policy:
    """Load the checkpoint folder `path`, of a pi0, pi0.5 or SmolVLA (see load_smolvla).

    dtype: float32 or bfloat16 (some parts stay float32, as in openpi).
    delta_mask: bool [D], see Policy; by default every action with statistics is an absolute one.
    asset: which `assets/<asset>/norm_stats.json`, needed if there are several.
    normalize: False for a policy without statistics, whose numbers are in the units of its training.
    prompt_state: see Policy.
    Raises ValueError, one sentence, for everything that is missing, malformed or does not fit.
    """
    folder = Path(path)
    from vla_accel_ros.models.smolvla_checkpoint import is_smolvla, load_smolvla  # which reads this module

    if is_smolvla(folder):
        return load_smolvla(folder, device, dtype, delta_mask, normalize=normalize)
    target = find_device(device)
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype}; use torch.float32 or torch.bfloat16.")
    weights = _weights_file(folder)
    config = read_config(folder)
    tokenizer = load_tokenizer(folder, config.vocab)
    state, actions = Normalizer.identity(), Normalizer.identity()
    if normalize:
        state, actions = read_normalizers(folder, config.kind, asset)
    if delta_mask is None:
        delta_mask = np.zeros(min(actions.size, config.action_dim) or config.action_dim, dtype=np.bool_)
    model = load_model(weights, config, target, dtype)
    delay = _trained_delay(folder, config.horizon)
    return Policy(model, tokenizer, state, actions, np.asarray(delta_mask), prompt_state, delay)


def load_model(file: Path, config: PiConfig, device: torch.device, dtype: torch.dtype = torch.float32) -> Pi:
    """A model of these sizes with the weights of a safetensors file, in eval mode and without gradients.

    Raises ValueError listing every missing, unexpected and misshapen tensor.
    """
    with torch.device("meta"):
        model = Pi(config).set_precision(dtype)
    wanted = {name: parameter for name, parameter in model.named_parameters() if name != LM_HEAD}
    with open_weights(file) as tensors:
        given = {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
        names = {name: name for name in wanted}
        if EMBED_TOKENS not in given and LM_HEAD in given:
            names[EMBED_TOKENS] = LM_HEAD
        _compare({name: tuple(wanted[name].shape) for name in wanted}, names, given, file)
        both = LM_HEAD in given and EMBED_TOKENS in given
        if both and not torch.equal(tensors.get_tensor(LM_HEAD), tensors.get_tensor(EMBED_TOKENS)):
            raise ValueError(
                f"{file}: {LM_HEAD} and {EMBED_TOKENS} are one tensor but differ; keep one of them."
            )
        loaded = {
            name: tensors.get_tensor(names[name]).to(device, parameter.dtype, copy=True)
            for name, parameter in wanted.items()
        }
    loaded[LM_HEAD] = loaded[EMBED_TOKENS]
    model.load_state_dict(loaded, assign=True)
    model.tie_weights()
    return model.requires_grad_(False).eval()


def read_config(folder: Path) -> PiConfig:
    """The sizes: `config.json`'s "vla_accel_ros" if it is there, else inferred from the tensors' shapes."""
    file = folder / "config.json"
    data = read_json(file) if file.is_file() else {}
    if "vla_accel_ros" in data:
        try:
            return PiConfig.from_json(data["vla_accel_ros"])
        except (TypeError, ValueError) as error:
            raise ValueError(f"{file}, field vla_accel_ros: {error}") from error
    weights = _weights_file(folder)
    with open_weights(weights) as tensors:
        shapes = {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
    return infer_config(shapes, data, str(weights))


def _trained_delay(folder: Path, horizon: int) -> int:
    """See read_trained_delay."""
    file = folder / "config.json"
    try:
        return read_trained_delay(read_json(file) if file.is_file() else {}, horizon)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def _compare(
    wanted: dict[str, tuple[int, ...]], names: dict[str, str], given: dict[str, tuple[int, ...]], file: Path
) -> None:
    missing = sorted(name for name in wanted if names[name] not in given)
    unexpected = sorted(set(given) - set(wanted) - {LM_HEAD} - UNUSED)
    misshapen = [
        f"{name} {list(given[names[name]])} instead of {list(shape)}"
        for name, shape in sorted(wanted.items())
        if names[name] in given and given[names[name]] != shape
    ]
    if LM_HEAD in given and given[LM_HEAD] != wanted[EMBED_TOKENS] and names[EMBED_TOKENS] != LM_HEAD:
        misshapen.append(f"{LM_HEAD} {list(given[LM_HEAD])} instead of {list(wanted[EMBED_TOKENS])}")
    if missing or unexpected or misshapen:
        mend = "make config.json and the weights of one model"
        if any(name.startswith("model.") for name in unexpected):
            mend = (
                "these are lerobot's names, so remove the leading `model.` and add openpi's norm_stats.json"
            )
        raise ValueError(
            f"{file} does not fit the model: missing {missing}, unexpected {unexpected}, "
            f"misshapen {misshapen}; {mend}."
        )


def _weights_file(folder: Path) -> Path:
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; give the checkpoint's folder.")
    file = folder / "model.safetensors"
    if not file.is_file():
        others = sorted(
            p.name for p in folder.iterdir() if p.suffix in (".safetensors", ".bin", ".pt", ".pth")
        )
        raise ValueError(
            f"{folder} has no model.safetensors (but {others}); convert the weights to that one file."
        )
    return file


def find_device(device: str | torch.device) -> torch.device:
    """The device of that name. Raises ValueError if it is no device or not there."""
    try:
        target = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device is '{device}'; use 'cpu', 'cuda' or 'cuda:<n>'.") from error
    found = torch.cuda.device_count()
    if target.type == "cuda" and (target.index or 0) >= found:
        raise ValueError(
            f"device is '{device}' but torch finds {found} CUDA devices; use 'cpu' or a torch built for CUDA."
        )
    return target
