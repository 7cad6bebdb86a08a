"""Load pi0 and pi0.5 weights under openpi's names, or lerobot's, which begin with `model.`.

The language head and the token embedding are one tensor, which a file may hold under either name or both.
Under lerobot's names they may differ: it trains the embedding and never the head, which it does not read, so
here the embedding is both. The action expert's own head may be present but is not loaded, since nothing reads
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from vla_accel_ros.models.checkpoints.formats import Options, filled
from vla_accel_ros.models.checkpoints.shards import Stored, check_table
from vla_accel_ros.models.checkpoints.streaming import empty, same
from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.models.layers.fused import fused_parts
from vla_accel_ros.models.pi.model import Pi

ROOT = "paligemma_with_expert."
LEROBOT = "model."
LM_HEAD = ROOT + "paligemma.lm_head.weight"
EMBED_TOKENS = ROOT + "paligemma.model.language_model.embed_tokens.weight"
UNUSED = ROOT + "gemma_expert.lm_head.weight"


def before_names(table: Mapping[str, Stored]) -> str:
    """Return the prefix of openpi's names in a table: "", or lerobot's `model.`."""
    return LEROBOT if any(name.startswith(LEROBOT + ROOT) for name in table) else ""


def pi_shapes(table: Mapping[str, Stored]) -> dict[str, tuple[int, ...]]:
    """Return the shapes by openpi's names."""
    lead = before_names(table)
    return {name.removeprefix(lead): stored.shape for name, stored in table.items()}


@lru_cache(maxsize=8)
def parameter_shapes(config: PiConfig) -> Mapping[str, tuple[int, ...]]:
    """Return the shape of every parameter; one with two names is listed under both."""
    parameters = empty(Pi, config).named_parameters(remove_duplicate=False)
    return MappingProxyType({name: tuple(parameter.shape) for name, parameter in parameters})


def pi_sources(table: Mapping[str, Stored], config: PiConfig, where: Path) -> dict[str, str]:
    """Return the tensor that each parameter comes from. Raises ValueError listing every tensor that does not
    fit."""
    lead, shapes = before_names(table), parameter_shapes(config)
    names = {name: lead + name for name in shapes if name != LM_HEAD}
    head = lead + LM_HEAD
    if head in table and names[EMBED_TOKENS] not in table:
        names[EMBED_TOKENS] = head
    shapes_of_sources = {source: shapes[name] for name, source in names.items()}
    if head in table:
        shapes_of_sources[head] = shapes[EMBED_TOKENS]
    check_table(table, shapes_of_sources, lambda name: name == lead + UNUSED, where)
    has_head = head in table and names[EMBED_TOKENS] != head
    if has_head and not lead and not same(table, head, names[EMBED_TOKENS]):
        raise ValueError(
            f"{where}: {head} and {names[EMBED_TOKENS]} are one tensor but differ; keep one of them."
        )
    return names


def load_pi_model(table: Mapping[str, Stored], config: PiConfig, where: Path, options: Options) -> Pi:
    """Return a model of these sizes with the weights of `table`, see formats.filled. Raises ValueError
    listing every tensor that does not fit."""
    names = {source: name for name, source in pi_sources(table, config, where).items()}
    model = empty(Pi, config, options.dtype)
    return finished(filled(model, table, names, where, options, fused_parts(model)))


def finished(model: Pi) -> Pi:
    """Tie the language head to the embedding, and prepare for inference."""
    model.tie_weights()
    return model.requires_grad_(False).eval()
