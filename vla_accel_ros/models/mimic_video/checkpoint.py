"""Read a mimic-video from the authors' files, gathered in one folder.

`video_backbone.pt` and `action_decoder.pt`, or the one file in a folder of that name, are files of torch.save
and read as data (checkpoints/torch_file.py); so is the video encoder, `tokenizer.pth`. `text_encoder/` is a
T5 as transformers saves it, `dataset_statistics.json` has the units. A folder that `vla convert` wrote has
all tensors in one safetensors file. Settings of the training that no file has are given as `trained_as`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vla_accel_ros.models.checkpoints.description import Description, Missing
from vla_accel_ros.models.checkpoints.fields import OURS, check_fields
from vla_accel_ros.models.checkpoints.formats import (
    Contents,
    Format,
    Options,
    Weights,
    check_unanswered,
    filled,
    fitting,
    own_sizes,
    renamed,
)
from vla_accel_ros.models.checkpoints.shards import Stored, inside, named, read_headers
from vla_accel_ros.models.checkpoints.shards import read_table as read_safetensors
from vla_accel_ros.models.checkpoints.streaming import empty
from vla_accel_ros.models.config import TRAINED_AS
from vla_accel_ros.models.inferred import Shapes, axes, depth, heads, tensors_of
from vla_accel_ros.models.json_file import read_json
from vla_accel_ros.models.mimic_video.config import (
    KIND,
    MIMIC_VIDEO,
    STAGES,
    DiTConfig,
    MimicVideoConfig,
    Settings,
)
from vla_accel_ros.models.mimic_video.model import MimicVideo
from vla_accel_ros.models.mimic_video.policy import MimicVideoPolicy
from vla_accel_ros.models.mimic_video.statistics import UNKNOWN, Units, read_units, statistics_files
from vla_accel_ros.models.processing.ranges import trained_range
from vla_accel_ros.models.text.t5 import infer_t5
from vla_accel_ros.models.text.tokenizer import load_tokenizer

TEXT, VAE, VIDEO, DECODER = "text_encoder.", "vae.", "video.", "decoder."
BACKBONE, ACTIONS, ENCODER, TOKENIZER = "video_backbone", "action_decoder", "text_encoder", "tokenizer"
FILES = {VIDEO: (BACKBONE, "pt"), DECODER: (ACTIONS, "pt"), VAE: (TOKENIZER, "pth")}
NET = "net."
"""Prefix of names in both files of a training."""
LAYER = re.compile(r"_layer(\d+)(_|$)")
"""In the name of a decoder's file: the block that it reads."""
UNUSED = re.compile(
    r"(video\.(accum_|pos_embedder\.)|decoder\.(obs_mask_token$|accum_)|vae\.(decoder|conv2)\.|"
    r"text_encoder\.(decoder\.|lm_head\.|encoder\.embed_tokens\.))|.*\._extra_state$"
)
"""What no path reads: counters, the other halves of both encoders, and what other libraries keep."""


def holds(contents: Contents) -> bool:
    """Return whether the folder has a video network and an action decoder, or our sizes of a mimic-video."""
    folder = contents.folder
    return contents.kind == KIND or all(any(folder.glob(f"{name}*")) for name in (BACKBONE, ACTIONS))


def _file(folder: Path, name: str, suffix: str) -> Path:
    """The file of a part. Raises ValueError unless there is one."""
    files = [*folder.glob(f"{name}.{suffix}"), *sorted((folder / name).glob(f"*.{suffix}"))]
    if len(files) != 1:
        raise ValueError(
            f"{folder} has {[str(file.relative_to(folder)) for file in files]} of {name}; have one file, "
            f"{name}.{suffix} or any in {name}/."
        )
    return inside(folder, files[0])


def read_table(contents: Contents) -> dict[str, Stored]:
    """Return every tensor by our names. Raises ValueError that lists all parts that are missing."""
    if contents.tensors:
        return dict(contents.table)
    missing, table = Missing(), dict[str, Stored]()

    def add(root: str, tensors: Mapping[str, Stored]) -> None:
        table.update(named(tensors, lambda name: root + name.removeprefix(NET)))

    for root, (name, suffix) in FILES.items():
        file = missing.read(_file, contents.folder, name, suffix)
        add(root, missing.read(read_headers, file, default={}) if file else {})
    add(TEXT, missing.read(read_safetensors, contents.folder / ENCODER, default={}))
    missing.raise_all()
    embedding, shared = table.get(f"{TEXT}encoder.embed_tokens.weight"), f"{TEXT}shared.weight"
    return table if embedding is None else {shared: embedding, **table}


def read_config(contents: Contents, table: Mapping[str, Stored]) -> tuple[MimicVideoConfig, str]:
    """Return the sizes, and a sentence if settings were taken as published. Raises ValueError if nobody says
    what no file says, or if it is said twice."""
    folder, settings = contents.folder, contents.trained_as
    if OURS in contents.config:
        check_unanswered(contents)
        return own_sizes(contents, MimicVideoConfig.from_json), ""
    check_fields(contents.config, f"{folder / 'config.json'}: ", (), {})
    decoder = LAYER.search(_file(folder, *FILES[DECODER]).stem)
    shapes = {name: stored.shape for name, stored in table.items()}
    text = read_json(inside(folder, folder / ENCODER / "config.json"))
    try:
        config = infer_mimic_video(shapes, text, int(decoder[1]) if decoder else None, settings)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from error
    return config, "" if settings else f"the published {config.settings}"


@tensors_of("the files of its training, copied again")
def infer_mimic_video(
    shapes: Shapes, text: Mapping[str, Any], layer: int | None, settings: str
) -> MimicVideoConfig:
    """Return the sizes of these tensors. text: config.json of the text encoder. layer: by the name of the
    decoder's file, or None. settings: see Settings.parse. Raises ValueError if a tensor is missing, a setting
    is unknown, or must be said because the network is not the published one."""
    video, decoder = _stack(shapes, VIDEO), _stack(shapes, DECODER)
    if not settings and video.width != MIMIC_VIDEO.video.width:
        raise ValueError(
            f"no file of a mimic-video says the settings of its training, and with {video.depth} blocks "
            f"of width {video.width} it is not the published one; give {TRAINED_AS} (--as on the command "
            "line), such as 'image_size=480x640 xattn_layer_idx=20', as they were."
        )
    residuals = (f"{VAE}encoder.downsamples.{n}.residual.6.weight" for n in range(4 * STAGES * STAGES))
    stages = [axes(shapes, name, 5)[0] for name in residuals if name in shapes]
    vae_blocks = max(1, len(stages) // STAGES)
    return MimicVideoConfig(
        text=infer_t5({n.removeprefix(TEXT): s for n, s in shapes.items() if n.startswith(TEXT)}, text),
        vae=(axes(shapes, f"{VAE}encoder.conv1.weight", 5)[0], *stages[::vae_blocks]),
        vae_blocks=vae_blocks,
        video=video,
        decoder=decoder,
        state_hidden=_hidden(shapes, f"{DECODER}obs_embedder.layers."),
        action_hidden=_hidden(shapes, f"{DECODER}action_embedder.layers."),
        action_dim=axes(shapes, f"{DECODER}final_layer.linear.weight", 2)[0],
        state_dim=axes(shapes, f"{DECODER}obs_embedder.layers.0.weight", 2)[1],
        horizon=axes(shapes, f"{DECODER}pos_embedding", 3)[1] - 1,
        settings=Settings.parse(settings if layer is None else f"xattn_layer_idx={layer} {settings}"),
    )


def _hidden(shapes: Shapes, root: str) -> tuple[int, ...]:
    layers = range(0, depth(shapes, root) - 1, 2)
    return tuple(axes(shapes, f"{root}{layer}.weight", 2)[0] for layer in layers)


def _stack(shapes: Shapes, root: str) -> DiTConfig:
    first = f"{root}blocks.0."
    inner, width = axes(shapes, f"{first}self_attn.q_proj.weight", 2)
    (head_dim,) = axes(shapes, f"{first}self_attn.q_norm.weight", 1)
    return DiTConfig(
        width=width,
        depth=depth(shapes, f"{root}blocks."),
        heads=heads(inner, head_dim, first),
        head_dim=head_dim,
        mlp=axes(shapes, f"{first}mlp.layer1.weight", 2)[0],
        context=axes(shapes, f"{first}cross_attn.k_proj.weight", 2)[1],
        rank=axes(shapes, f"{first}adaln_modulation_mlp.1.weight", 2)[0],
    )


def names_of(table: Mapping[str, Stored], config: MimicVideoConfig, where: Path) -> dict[str, str]:
    """See formats.fitting."""
    idle = [f"{VIDEO}blocks.{number}." for number in range(config.blocks, config.video.depth)]
    if not config.settings.stop_after_step:
        idle.append(f"{VIDEO}final_layer.")

    def unused(name: str) -> bool:
        return bool(UNUSED.match(name)) or name.startswith((*idle,))

    return fitting(empty(MimicVideo, config), table, where, unused=unused)


def load(contents: Contents, options: Options) -> MimicVideoPolicy:
    """See checkpoint.load_policy. All parameters have the same dtype."""
    folder, table = contents.folder, read_table(contents)
    config, _ = read_config(contents, table)
    names, tokenizer, units, missing = _read(folder, table, config, options.statistics, options.normalize)
    missing.raise_all()
    mask = options.actions(None, config.action_dim, str(folder))
    model = empty(MimicVideo, config, options.dtype)
    network = options.network(config, str(folder), lambda: filled(model, table, names, folder, options))
    return MimicVideoPolicy(network, tokenizer, units.state, units.actions, mask, clamp=units.clamp)


def describe(contents: Contents, statistics: str | None) -> Description:
    """See models.checkpoints.description."""
    folder, table = contents.folder, read_table(contents)
    config, assumed = read_config(contents, table)
    _, _, units, missing = _read(folder, table, config, statistics, normalize=True)
    s, blocks = config.settings, config.video.depth
    return Description(
        folder,
        f"mimic-video, {'safetensors' if contents.tensors else 'torch files of its authors'}",
        config,
        table,
        state=trained_range(units.state),
        actions=trained_range(units.actions),
        normalisation="mean and deviation; states are cut",
        other_actions=units.kind,
        statistics=tuple(statistics_files(folder)),
        notes=(f"features of block {s.xattn_layer_idx} of {blocks} after {s.stop_after_step} video steps",),
        assumed=assumed,
        missing=tuple(missing.sentences),
    )


def _read(
    folder: Path, table: Mapping[str, Stored], config: MimicVideoConfig, name: str | None, normalize: bool
) -> tuple[Any, Any, Units, Missing]:
    """The parameter of each tensor, the tokenizer, the units, and a sentence for each that cannot be read."""
    missing, sizes = Missing(), (config.state_dim, config.action_dim)
    units = missing.read(read_units, folder, name, *sizes, default=UNKNOWN) if normalize else UNKNOWN
    tokenizer = missing.read(load_tokenizer, folder / ENCODER, config.text.vocab)
    return missing.read(names_of, table, config, folder), tokenizer, units, missing


def weights(contents: Contents) -> Weights:
    """See formats.Weights."""
    table = read_table(contents)
    config, _ = read_config(contents, table)
    return renamed(table, names_of(table, config, contents.folder))


FORMAT = Format("mimic-video", holds, describe, load, weights, asks=True)
