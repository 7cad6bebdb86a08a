"""Load a checkpoint folder as a policy, or refuse the whole folder with one error.

The contents of a folder decide its format (formats.py); extensions.py holds the table of formats. Before any
weight is read, the names, shapes and dtypes in the file headers are compared with the model, and one error
lists every difference. Weights then move one by one to their device and dtype (streaming.py). Pickled files
are never opened, and code in a checkpoint folder is never run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from vla_accel_ros.extensions import BUILT_IN, MODEL_FAMILIES, find, names
from vla_accel_ros.models.checkpoints.description import Description
from vla_accel_ros.models.checkpoints.formats import Contents, Format, Options, check_unanswered
from vla_accel_ros.models.checkpoints.shards import ADAPTERS, INDEX, PICKLED, SINGLE, check_merged
from vla_accel_ros.models.checkpoints.streaming import LayerLoaded, Progress
from vla_accel_ros.models.device import find_device
from vla_accel_ros.models.policies import AnyPolicy


def load_policy(
    path: str | Path,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    delta_mask: np.ndarray | None = None,
    *,
    statistics: str | None = None,
    normalize: bool = True,
    prompt_state: str = "auto",
    trained_as: str = "",
    progress: Progress | None = None,
    layer_loaded: LayerLoaded | None = None,
) -> AnyPolicy:
    """Load the checkpoint folder `path`, of any known format.

    dtype: float32 or bfloat16. Some parameters stay float32, as they were in training.
    delta_mask: bool [D], see Policy. By default the folder or trained_as decides; openpi's must have it from
        somewhere, for any other without a word all actions are absolute.
    statistics: which statistics to use where a checkpoint has several: openpi's asset id, OpenVLA's data set
        name, or GR00T's embodiment. For a lerobot checkpoint, a data set folder whose meta/stats.json
        replaces the saved statistics.
    normalize: False for a policy without statistics; its inputs and outputs are then in training units.
    prompt_state: see Policy; "auto" follows the checkpoint as far as it says.
    trained_as: the settings of a training that no file holds. Of openpi, see models.pi.training: a public
        configuration ("pi05_libero"), openpi's names ("action_horizon=10 ..."), or both. Of lerobot's pi0 and
        pi0.5: "prompt_state=padded", or own or none. It and prompt_state must agree.
    progress: called after every tensor.
    layer_loaded: called with each layer of pi0, pi0.5 and OpenVLA once all its parameters are loaded, so that
        it can be quantised before the next layer is read (engine.stages.dropping). Not called for an Orbax
        folder.
    Raises ValueError, with one sentence, if anything is missing, malformed or does not fit.
    """
    options = Options(
        find_device(device),
        dtype,
        delta_mask,
        statistics or None,
        normalize,
        progress,
        layer_loaded=layer_loaded,
    )
    contents = Contents.of(path, trained_as, prompt_state)
    return find_format(contents).load(contents, options)


def with_statistics(
    policy: AnyPolicy,
    path: str | Path,
    delta_mask: np.ndarray | None = None,
    *,
    statistics: str | None = None,
    normalize: bool = True,
    prompt_state: str = "auto",
    trained_as: str = "",
) -> AnyPolicy:
    """Return a policy with the network of `policy` and other statistics, for another robot.

    The two policies share the weights. Only the small files of the checkpoint folder `path` are read: the
    folder of `policy`, or another with a network of the same sizes. The other parameters are those of
    load_policy. Raises ValueError as load_policy does, if the sizes differ, and if the format cannot share
    weights.
    """
    options = Options(
        policy.device,
        torch.float32,
        delta_mask,
        statistics or None,
        normalize,
        model=policy.model,
    )
    contents = Contents.of(path, trained_as, prompt_state)
    family = find_format(contents)
    described = family.load(contents, options)
    if described.model is not policy.model:
        raise ValueError(
            f"{path}: the format {family.name} loads a network of its own for every robot; let its `load` "
            "take the one of Options.network."
        )
    return described


def describe(
    path: str | Path, statistics: str | None = None, trained_as: str = "", prompt_state: str = "auto"
) -> Description:
    """Describe a checkpoint folder without reading a weight; the parameters are those of load_policy. Raises
    ValueError if no format knows it."""
    contents = Contents.of(path, trained_as, prompt_state)
    return find_format(contents).describe(contents, statistics or None)


def formats() -> Iterator[Format]:
    """Yield all formats in the order in which they are tried; those of other packages come last.

    Raises ValueError on reaching an entry point that is not a Format or cannot be imported.
    """
    for name in names(MODEL_FAMILIES):
        family = find(MODEL_FAMILIES, name)
        if not isinstance(family, Format):
            raise ValueError(
                f"{name!r} of {MODEL_FAMILIES} is a {type(family).__name__}; let it be a Format of ours."
            )
        yield family


def find_format(contents: Contents) -> Format:
    """Return the format of a folder. Raises ValueError, saying what was found, if no format recognises it, if
    it has adapters, or if it was given settings of a training that it does not ask for."""
    check_merged(contents.folder, contents.tensors)
    for family in formats():
        if family.holds(contents):
            if not family.asks:
                check_unanswered(contents, family.name)
            return family
    added = names(MODEL_FAMILIES)[len(BUILT_IN[MODEL_FAMILIES]) :]
    types = {name: contents.config[name] for name in ("type", "model_type") if name in contents.config}
    files = sorted(path.name for path in contents.folder.iterdir() if not path.name.startswith("."))
    pickled = [name for name in files if Path(name).suffix in PICKLED]
    inner = _newest_within(contents.folder)
    newer = ("GR00T", "X-VLA", "Fast-WAM", "mimic-video", *added)
    families = ("pi0", "pi0.5", "pi0-FAST", "OpenVLA", "OpenVLA-OFT", *newer)
    mend = f"give the folder of a {', '.join(families)} or SmolVLA"
    if inner:
        mend = f"give {inner}"
    elif pickled:
        mend = f"{pickled[0]} may hold pickled code and is never opened, so save the weights as safetensors"
    raise ValueError(
        f"{contents.folder} is no checkpoint that is known here (config.json says {types or 'nothing'}, "
        f"files {files[:8]}, tensors {sorted(contents.tensors)[:3]}); {mend}."
    )


def _newest_within(folder: Path) -> Path | None:
    """Return the newest checkpoint below a training's folder, by its step."""
    files = [
        file
        for depth in ("*", "*/*", "*/*/*")
        for name in (SINGLE, INDEX, ADAPTERS[0], "params/_METADATA")
        for file in folder.glob(f"{depth}/{name}")
    ]
    newest = max(files, key=lambda file: [part.zfill(20) for part in file.parts], default=None)
    return newest and (newest.parents[1] if newest.name == "_METADATA" else newest.parent)
