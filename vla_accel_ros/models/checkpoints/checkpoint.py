"""The door: a checkpoint folder in, a policy out; refused as a whole if anything is wrong with it.

What a folder is, its contents say (formats.py); the table of formats is in extensions.py. Names, shapes and
types of all tensors are compared with the model from the files' headers before a single weight is read, and
every difference is in one error. Weights then go one by one to their device and dtype (streaming.py). Pickled
files are never opened, and no code that lies in a folder is run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from vla_accel_ros.extensions import BUILT_IN, MODEL_FAMILIES, find, names
from vla_accel_ros.models.checkpoints.description import Description
from vla_accel_ros.models.checkpoints.formats import Contents, Format, Options
from vla_accel_ros.models.checkpoints.shards import PICKLED
from vla_accel_ros.models.checkpoints.streaming import Progress
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
    progress: Progress | None = None,
) -> AnyPolicy:
    """Load the checkpoint folder `path`, of any known format.

    dtype: float32 or bfloat16 (some parts stay float32, as whoever trained it left them).
    delta_mask: bool [D], see Policy; by default what the folder says, or else every action is absolute.
    statistics: whose to use where there are several: openpi's asset id, OpenVLA's name of the data set; of
        what lerobot saved, the folder of a data set whose own (meta/stats.json) take the place of the saved.
    normalize: False for a policy without statistics, whose numbers are in the units of its training.
    prompt_state: see Policy; "auto" is what the folder was trained with, as far as it says.
    progress: told after every tensor.
    Raises ValueError, one sentence, for everything that is missing, malformed or does not fit.
    """
    options = Options(
        find_device(device), dtype, delta_mask, statistics or None, normalize, prompt_state, progress
    )
    contents = Contents.of(path)
    return find_format(contents).load(contents, options)


def with_statistics(
    policy: AnyPolicy,
    path: str | Path,
    delta_mask: np.ndarray | None = None,
    *,
    statistics: str | None = None,
    normalize: bool = True,
    prompt_state: str = "auto",
) -> AnyPolicy:
    """The network of a policy that is loaded, between other statistics: what another robot needs.

    The weights are shared, and none are read: only the small files of the checkpoint folder `path`, the
    policy's own or another of the same sizes. The other parameters are those of load_policy.
    Raises ValueError as load_policy does, for sizes that differ, and for a format that shares no weights.
    """
    options = Options(
        policy.device,
        torch.float32,
        delta_mask,
        statistics or None,
        normalize,
        prompt_state,
        model=policy.model,
    )
    contents = Contents.of(path)
    known = find_format(contents)
    made = known.load(contents, options)
    if made.model is not policy.model:
        raise ValueError(
            f"{path}: the format {known.name} loads a network of its own for every robot; let its `load` "
            "take the one of Options.network."
        )
    return made


def describe(path: str | Path, statistics: str | None = None) -> Description:
    """What the folder says of itself; no weight is read. Raises ValueError if it is no known checkpoint."""
    contents = Contents.of(path)
    return find_format(contents).describe(contents, statistics or None)


def formats() -> Iterator[Format]:
    """All formats in the order in which they are tried, those of other packages last.

    Raises ValueError for an entry point that is no Format or cannot be imported, when it comes to it.
    """
    for name in names(MODEL_FAMILIES):
        known = find(MODEL_FAMILIES, name)
        if not isinstance(known, Format):
            raise ValueError(
                f"{name!r} of {MODEL_FAMILIES} is a {type(known).__name__}; let it be a Format of ours."
            )
        yield known


def find_format(contents: Contents) -> Format:
    """Whose folder it is. Raises ValueError, saying what was found, for one that nobody knows."""
    for known in formats():
        if known.holds(contents):
            return known
    added = names(MODEL_FAMILIES)[len(BUILT_IN[MODEL_FAMILIES]) :]
    said = {name: contents.config[name] for name in ("type", "model_type") if name in contents.config}
    files = sorted(path.name for path in contents.folder.iterdir() if not path.name.startswith("."))
    pickled = [name for name in files if Path(name).suffix in PICKLED]
    mend = f"give the folder of a {', '.join(('pi0', 'pi0.5', 'OpenVLA', *added))} or SmolVLA"
    if pickled:
        mend = f"{pickled[0]} may hold pickled code and is never opened, so save the weights as safetensors"
    raise ValueError(
        f"{contents.folder} is no checkpoint that is known here (config.json says {said or 'nothing'}, "
        f"files {files[:8]}, tensors {sorted(contents.tensors)[:3]}); {mend}."
    )
