"""Read folders in which lerobot saved a Fast-WAM, and the authors' own files (authors.py).

lerobot's layout: `config.json` (type fastwam), `model.safetensors` with every name behind `model.`, and the
two processor files. The VAE, the text encoder and its tokenizer, which no training changes, are in folders
`vae`, `text_encoder` and `tokenizer` of Wan-AI/Wan2.2-TI2V-5B-Diffusers: in the checkpoint's folder, or in
one of that name or `wan_diffusers` in or beside it. A converted folder has all tensors in one file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from vla_accel_ros.models.checkpoints.description import Description, Missing
from vla_accel_ros.models.checkpoints.formats import (
    Contents,
    Format,
    Options,
    Weights,
    check_unanswered,
    read_sizes,
    renamed,
)
from vla_accel_ros.models.checkpoints.lerobot import lerobot_description
from vla_accel_ros.models.checkpoints.shards import (
    Stored,
    check_table,
    inside,
    named,
    read_headers,
    read_table,
)
from vla_accel_ros.models.checkpoints.streaming import empty, fill, read
from vla_accel_ros.models.fastwam import authors
from vla_accel_ros.models.fastwam.config import FASTWAM, LEROBOT, LIBERO, FastWAMConfig
from vla_accel_ros.models.fastwam.model import FastWAM
from vla_accel_ros.models.fastwam.policy import FastWAMPolicy
from vla_accel_ros.models.fastwam.sizes import check_settings, read_lerobots, read_vae
from vla_accel_ros.models.json_file import read_json
from vla_accel_ros.models.layers.wan_vae import slices, stored_shape
from vla_accel_ros.models.processing.conventions import Normalizer
from vla_accel_ros.models.processing.lerobot_processors import (
    AFTER,
    Step,
    read_lerobot_normalizers,
    read_steps,
)
from vla_accel_ros.models.processing.ranges import trained_range
from vla_accel_ros.models.text.t5 import infer_t5
from vla_accel_ros.models.text.tokenizer import PLACES, load_tokenizer

ROOT, VAE, TEXT = "model.", "vae.", "text_encoder."
WAN, SHORT, WORDS = "Wan-AI/Wan2.2-TI2V-5B-Diffusers", "wan_diffusers", "google/umt5-xxl"
VAE_FILE = "diffusion_pytorch_model.safetensors"
TOGGLE, TOGGLED = "fastwam_action_toggle_processor", "toggle_dimensions"
EARLIER = re.compile(r"^mot\.mixtures\.(\w+)\.blocks\.(\d+)\.")
"""Names of layers in the first published folders and in the authors' files."""
SHARED, EMBEDDING = f"{TEXT}shared.weight", f"{TEXT}encoder.embed_tokens.weight"
UNUSED = (
    r"mot\.mixtures\.video\.head\.|vae\.(decoder|post_quant_conv)\.|vae\.encoder\.down_blocks\.\d+\."
    r"downsampler\.time_conv\.|mot\.layers\.LAST\.blocks\.video\.(self_attn\.(q|o|norm_q)|cross_attn|norm3|ffn)\."
)
"""What no action is computed from: the video's end, and what the VAE needs for more than one frame."""
NOTHING: tuple[Normalizer, Normalizer, tuple[int, ...]] = (Normalizer.identity(), Normalizer.identity(), ())


@dataclass(frozen=True)
class Parts:
    """Folders of the VAE, the text encoder and the tokenizer; None = there is none."""

    vae: Path | None
    text: Path | None
    words: Path | None

    @classmethod
    def of(cls, contents: Contents) -> Parts:
        """Look for them where the module says."""
        folder = contents.folder
        wan = Path(str(contents.config.get("text_encoder_model_id") or WAN))
        words = Path(str(contents.config.get("tokenizer_model_id") or WORDS))
        nearby = (folder, folder.parent)
        homes = [folder, folder / wan]
        homes += [near / name for near in nearby for name in (wan.name, Path(WAN).name, SHORT)]
        texts = [*homes, folder / words, *(near / words.name for near in nearby)]
        vae, text = (
            next((home / name for home in homes if (home / name / "config.json").is_file()), None)
            for name in ("vae", "text_encoder")
        )
        has_words = (home for home in texts if any((home / file).is_file() for file in PLACES))
        return cls(vae, text, next(has_words, None))

    def complete(self, contents: Contents) -> bool:
        """Return True. Raises ValueError naming those that are not there."""
        folders = {"vae": self.vae, "text_encoder": self.text, "tokenizer": self.words}
        stored = {name.partition(".")[0] for name in contents.tensors}
        absent = [name for name, home in folders.items() if home is None and name not in stored]
        if absent:
            raise ValueError(
                f"{contents.folder} has no {' and no '.join(absent)}, which no training changes: copy these "
                f"folders of {WAN} into it or into {SHORT} beside it."
            )
        return True


def holds(contents: Contents) -> bool:
    """Return whether config.json names a Fast-WAM, or the tensors have its names."""
    named = f"{ROOT}mot.mixtures.action.action_encoder.weight" in contents.tensors
    named = named or "fastwam" in (contents.config.get("type"), contents.kind)
    return named or authors.weight_file(contents) is not None


def read_weights(contents: Contents) -> dict[str, Stored]:
    """Return every tensor by our name for it."""
    file, parts = authors.weight_file(contents), Parts.of(contents)
    table = dict(contents.table if file is None else read_headers(file))
    ours = named(table, lambda name: EARLIER.sub(r"mot.layers.\2.blocks.\1.", name.removeprefix(ROOT)))
    if parts.vae is not None and not any(name.startswith(VAE) for name in ours):
        ours |= named(read_headers(inside(parts.vae, parts.vae / VAE_FILE)), lambda name: VAE + name)
    if parts.text is not None and not any(name.startswith(TEXT) for name in ours):
        ours |= named(read_table(parts.text), lambda name: TEXT + name)
    embedding = ours.pop(EMBEDDING, None)
    return ours if embedding is None else {SHARED: embedding, **ours}


def read_config(contents: Contents) -> FastWAMConfig:
    """Return the sizes, as read_sizes does, or of the authors' files; the published ones of a VAE or text
    encoder that is not there. Raises ValueError listing what is unknown."""

    def infer(_: object, data: Mapping[str, Any]) -> FastWAMConfig:
        parts, problems = Parts.of(contents), Missing()
        vae = problems.read(_part, parts.vae, read_vae) or FASTWAM.vae
        shapes = {name: stored.shape for name, stored in read_weights(contents).items()}
        words = {name.removeprefix(TEXT): shape for name, shape in shapes.items() if name.startswith(TEXT)}
        text = problems.read(_part, parts.text, partial(infer_t5, words)) or FASTWAM.text
        config: Any = None
        if data:
            config = problems.read(read_lerobots, data, text, vae)
        else:
            config = problems.read(authors.infer, shapes, contents, text, vae)
        problems.raise_all()
        return cast(FastWAMConfig, config)

    if authors.weight_file(contents) is not None:
        return infer(None, {})
    check_unanswered(contents)
    return read_sizes(contents, FastWAMConfig.from_json, infer, check_settings)


def _part(folder: Path | None, reader: Callable[[Mapping[str, Any]], Any]) -> Any:
    """Return what the reader makes of a folder's config.json; None without a folder."""
    if folder is None:
        return None
    file = folder / "config.json"
    try:
        return reader(read_json(file))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{file}: {error}") from error


def read_units(
    folder: Path, config: FastWAMConfig, dataset: str | None = None
) -> tuple[Normalizer, Normalizer, tuple[int, ...]]:
    """Return (state, actions, toggled actions). Raises ValueError if a file is missing, unknown, or of
    another robot."""
    if config.picture != LEROBOT:
        state, actions, toggles = authors.read_units(folder, config.picture)
    else:
        state, actions = read_lerobot_normalizers(folder, (TOGGLE,), dataset)
        toggles = tuple(number for step in read_steps(folder / AFTER) for number in _toggles(step, config))
    sizes = ("state", state.size, config.state_dim), ("action", actions.size, config.action_dim)
    for name, size, needed in sizes:
        if size and needed and size != needed:
            raise ValueError(f"{folder}: {name} has {size} statistics, the network {needed}; give its own.")
    return state, actions, toggles


def _toggles(step: Step, config: FastWAMConfig) -> list[int]:
    if step.name != TOGGLE:
        return []
    listed, size = step.config.get(TOGGLED), config.action_dim
    whole = isinstance(listed, list) and all(type(n) is int and -size <= n < size for n in listed)
    if not whole or set(step.config) != {TOGGLED}:
        raise ValueError(
            f"{AFTER}, {TOGGLE} has {step.config!r}; give {TOGGLED} alone, some of the {size} of an action."
        )
    return [number % size for number in listed or []]


def _checked(contents: Contents, config: FastWAMConfig, statistics: str | None, problems: Missing) -> Any:
    """Return the units and the tokenizer, after checks of all files; what is wrong goes into `problems`."""
    parts, tokenizer = Parts.of(contents), None
    units = problems.read(read_units, contents.folder, config, statistics, default=NOTHING)
    if parts.words is not None:
        tokenizer = problems.read(load_tokenizer, parts.words, config.text.vocab)
    if problems.read(parts.complete, contents):
        problems.read(lambda: check(read_weights(contents), config, contents.weights))
    return units, tokenizer


def load(contents: Contents, options: Options) -> FastWAMPolicy:
    """See checkpoint.load_policy."""
    folder, config, problems = contents.folder, read_config(contents), Missing()
    units, tokenizer = _checked(contents, config, options.statistics, problems)
    problems.raise_all()
    state, actions, toggles = units if options.normalize else NOTHING
    mask = options.actions(None, config.action_dim, str(folder))
    model = options.network(config, str(folder), lambda: load_model(contents, config, options))
    reach = math.inf if config.picture == LEROBOT or not options.normalize else authors.REACH
    return FastWAMPolicy(model, tokenizer, state, actions, mask, toggles=toggles, reach=reach)


def load_model(contents: Contents, config: FastWAMConfig, options: Options) -> FastWAM:
    """Return a model of these sizes with the folder's weights. Raises ValueError naming every parameter that
    holds a number that is not finite."""
    table, where = read_weights(contents), str(contents.weights)
    model = empty(FastWAM, config, options.dtype)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}

    def values() -> Iterator[tuple[str, Tensor]]:
        for name, value in read(table, shapes):
            yield name, slices(value, shapes[name]) if name.startswith(VAE) else value

    total = sum(table[name].bytes for name in shapes)
    fill(model, values(), options.device, total, where, options.progress, None, options.layer_loaded)
    with torch.no_grad():
        return model.fold().requires_grad_(False).eval()


def check(table: Mapping[str, Stored], config: FastWAMConfig, where: Path) -> list[str]:
    """Return the names of the tensors that are used. Raises one ValueError that lists every difference."""
    model = empty(FastWAM, config)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    shapes |= {name: stored_shape(name, shape) for name, shape in shapes.items() if name.startswith(VAE)}
    unused = re.compile(UNUSED.replace("LAST", str(config.depth - 1)))
    check_table(table, shapes, lambda name: unused.match(name) is not None, where)
    return list(shapes)


def describe(contents: Contents, statistics: str | None) -> Description:
    """See models.checkpoints.description."""
    config, missing = read_config(contents), Missing()
    (state, actions, toggles), _ = _checked(contents, config, statistics, missing)
    notes = [f"one picture of {config.image_height} x {config.image_width} pixels of all cameras"]
    if toggles:
        notes.append(f"numbers {list(toggles)} of an action are commands of a gripper, -1 or 1, as in LIBERO")
    if config.picture == LEROBOT:
        description = lerobot_description(contents, config, state, actions, missing, notes, statistics)
        return replace(description, tensors=read_weights(contents), twist=bool(toggles))
    return Description(
        contents.folder,
        "Fast-WAM's authors, torch file" if not contents.tensors else "Fast-WAM's authors, safetensors",
        config,
        read_weights(contents),
        trained_range(state),
        trained_range(actions),
        "least and greatest" if config.picture == LIBERO else "mean and deviation",
        twist=bool(toggles),
        notes=tuple(notes),
        missing=tuple(missing.sentences),
    )


def weights(contents: Contents) -> Weights:
    """See formats.Weights; lerobot's names, with the VAE and the text encoder."""
    config, table, words = read_config(contents), read_weights(contents), Parts.of(contents).words
    names = check(table, config, contents.weights)
    written = {name: name if name.startswith((VAE, TEXT)) else ROOT + name for name in names}
    return renamed(table, written)._replace(beside=words)


FORMAT = Format("Fast-WAM", holds, describe, load, weights, asks=True)
