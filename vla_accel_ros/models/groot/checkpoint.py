"""Read the folders in which NVIDIA and lerobot save a GR00T N1.7 or N1.5.

NVIDIA's: `config.json` (model_type Gr00tN1d7 or gr00t_n1_5) and safetensors; N1.7 with
`processor_config.json`, `statistics.json` and `embodiment_id.json`. lerobot's: `config.json` (type groot),
`model.safetensors` with every name behind `_groot_model.`, and two processors. The tokenizer is the
backbone's: in `backbone/` (N1.7), or in `eagle_assets/` (N1.5). The embodiment is chosen as a checkpoint's
statistics are.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from vla_accel_ros.models.checkpoints.description import NOTHING, Description, Group, Missing
from vla_accel_ros.models.checkpoints.formats import (
    Contents,
    Format,
    Options,
    Weights,
    action_size,
    filled,
    fitting,
    own_sizes,
    renamed,
)
from vla_accel_ros.models.checkpoints.streaming import empty
from vla_accel_ros.models.groot.assets import MODEL_TYPES, Assets, is_lerobots, read_assets
from vla_accel_ros.models.groot.config import KINDS, N1_5, N1_7, GrootConfig
from vla_accel_ros.models.groot.embodiment import Settings, read_settings
from vla_accel_ros.models.groot.model import ROOTS, Groot
from vla_accel_ros.models.groot.policy import GrootPolicy
from vla_accel_ros.models.groot.prompt import check_tokenizer
from vla_accel_ros.models.groot.sizes import infer_groot
from vla_accel_ros.models.groot.units import POSE, Units
from vla_accel_ros.models.processing.conventions import LEROBOT as CONVENTIONS
from vla_accel_ros.models.processing.conventions import Normalizer
from vla_accel_ros.models.processing.ranges import Range
from vla_accel_ros.models.text.tokenizer import JsonTokenizer, load_qwen_tokenizer

POSES = {"rotation": "rot6d_rows", "state": "rot6d_rows", "relative_to": "absolute"}
"""What a contract says of hands' poses, which a policy gives as they are."""
MOST_FINGERS = 2
"""More numbers beside the pose of a hand are the joints of its arm."""


def holds(contents: Contents) -> bool:
    """Return whether config.json names a GR00T that is computed here."""
    is_nvidias = str(contents.config.get("model_type")) in MODEL_TYPES or contents.kind in KINDS
    return is_nvidias or is_lerobots(contents)


def load(contents: Contents, options: Options) -> GrootPolicy:
    """See checkpoint.load_policy."""
    folder, assets, settings, config = _read(contents, options.statistics, options.normalize)
    tokenizer = _tokenizer(assets, config, folder)
    width = action_size(settings.units.actions.size, config.action_dim, folder)
    relative = settings.units.relative if settings.units.actions.size else None
    mask = options.actions(relative, width, str(folder))

    def read_weights() -> Groot:
        names = names_of(contents, config, assets)
        return filled(empty(Groot, config, options.dtype), contents.table, names, contents.weights, options)

    model = options.network(config, str(folder), read_weights)
    identity = Normalizer.identity()
    return GrootPolicy(model, tokenizer, identity, identity, mask, conventions=CONVENTIONS, settings=settings)


def names_of(contents: Contents, config: GrootConfig, assets: Assets) -> dict[str, str]:
    """See formats.fitting."""
    table, roots = contents.table, {ours: assets.root + root for ours, root in ROOTS[config.kind].items()}
    head, layers = f"{roots['lm_head.']}weight", f"{roots['language_model.']}layers."
    embedding, norm = (f"{roots['language_model.']}{name}.weight" for name in ("embed_tokens", "norm"))
    other = {embedding: head} if embedding not in table and head in table else {}

    def stored(name: str) -> str:
        part = name[: name.index(".") + 1]
        source = roots.get(part, assets.root + part) + name[len(part) :]
        return other.get(source, source)

    def unused(name: str) -> bool:
        number = name.removeprefix(layers).split(".")[0] if name.startswith(layers) else ""
        cut = number.isdecimal() and int(number) >= config.text.depth
        pooling = config.kind == N1_5 and name.startswith(f"{roots['visual.']}head.")
        return cut or pooling or name in (head, embedding) or (config.kind == N1_7 and name == norm)

    return fitting(empty(Groot, config), table, contents.weights, stored, unused)


def describe(contents: Contents, statistics: str | None) -> Description:
    """See models.checkpoints.description; the statistics are those of an embodiment."""
    missing, folder = Missing(), contents.folder
    assets = read_assets(contents)
    settings = missing.read(read_settings, contents, assets, statistics)
    if settings is None:  # which embodiment is open, or its units are incomplete
        settings = read_settings(contents, assets, statistics, normalize=False)
    config = _config(contents, assets, settings)
    missing.read(_tokenizer, assets, config, folder)
    missing.read(names_of, contents, config, assets)
    units = settings.units
    notes = [f"embodiment '{settings.tag}', number {settings.number} of {config.embodiments}"]
    if units.steps is not None and units.steps < config.horizon:
        notes.append(f"the first {units.steps} of {config.horizon} actions in a chunk are this embodiment's")
    steps = assets.head.get("num_inference_timesteps")
    if steps is not None:
        notes.append(f"num_inference_timesteps is {steps}: set `steps` to it")
    relative = units.relative if units.actions.size else None
    poses = [group.name for group in units.groups if group.pose]
    return Description(
        folder,
        f"GR00T of {'lerobot' if assets.root else 'NVIDIA'}, safetensors",
        replace(config, image_names=settings.cameras),
        contents.tensors,
        _ends(units.state),
        _ends(units.actions, units.gripper),
        "to -1..1 between the range in training" + (", cut to it" if units.actions.clips else ""),
        relative=relative,
        groups=_groups(units),
        other_actions=f"{', '.join(poses)}: pose of a hand" if poses else "",
        statistics=settings.tags,
        notes=tuple(notes),
        missing=tuple(missing.sentences),
    )


def _groups(units: Units) -> tuple[Group, ...]:
    """For a contract of hands; none without them, or if poses stand among the joints of their arms."""
    groups = units.groups if units.alike else ()
    poses = [group for group in groups if group.pose]
    others = sum(group.size for group in groups if not group.pose)
    beside = {"beside": "true"} if others > MOST_FINGERS * len(poses) else {}
    in_front = all(group.pose for group in groups[: len(poses)])
    if {group.size for group in poses} != {POSE} or (beside and not in_front):
        return ()
    keys = {**POSES, **beside}
    return tuple(Group(group.name, group.size, keys if group.pose else {}) for group in groups)


def weights(contents: Contents) -> Weights:
    """See formats.Weights; with the folder's own names."""
    _, assets, _, config = _read(contents, None, False)
    names = names_of(contents, config, assets)
    return renamed(contents.table, {name: name for name in names})


def _read(
    contents: Contents, statistics: str | None, normalize: bool
) -> tuple[Path, Assets, Settings, GrootConfig]:
    assets = read_assets(contents)
    settings = read_settings(contents, assets, statistics, normalize)
    return contents.folder, assets, settings, _config(contents, assets, settings)


def _config(contents: Contents, assets: Assets, settings: Settings) -> GrootConfig:
    """The sizes: "vla_accel_ros" of `config.json` if present, else inferred; the cameras are those of all
    embodiments, so that they share one network."""
    if contents.kind:
        config = own_sizes(contents, GrootConfig.from_json)
        config = replace(config, image_names=settings.all_cameras, views=settings.views)
    else:
        shapes = {name.removeprefix(assets.root): stored.shape for name, stored in contents.table.items()}
        try:
            config = infer_groot(shapes, assets, settings.geometry, settings.all_cameras, settings.views)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{contents.folder / 'config.json'}: {error}") from error
    if settings.number >= config.embodiments:
        raise ValueError(
            f"{contents.folder}: the embodiment '{settings.tag}' has the number {settings.number}, the "
            f"network those from 0 to {config.embodiments - 1}; copy the files of one training."
        )
    if settings.units.state.size > config.state_dim:
        raise ValueError(
            f"{contents.folder} has statistics of states with {settings.units.state.size} numbers, the "
            f"network has room for {config.state_dim}; copy the files of one training."
        )
    return config


def _tokenizer(assets: Assets, config: GrootConfig, folder: Path) -> JsonTokenizer:
    if assets.words is None:
        raise ValueError(
            f"{folder} has no backbone/tokenizer.json; copy the one of {assets.head.get('model_name')} there."
        )
    tokenizer = load_qwen_tokenizer(assets.words, config.vocab)
    check_tokenizer(tokenizer, config)
    return tokenizer


def _ends(trained: Range, gripper: int | None = None) -> np.ndarray:
    """float64 [2, D]: the range in training, over all steps of a chunk; of a LIBERO's gripper -1 and 1."""
    if not trained.size:
        return NOTHING
    low, high = (np.atleast_2d(end).astype(np.float64) for end in (trained.low, trained.high))
    ends = np.stack((low.min(axis=0), high.max(axis=0)))
    if gripper is not None:
        ends[:, gripper] = -1.0, 1.0
    return ends


FORMAT = Format("GR00T", holds, describe, load, weights)
