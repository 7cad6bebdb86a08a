"""Read checkpoints of openpi's JAX training: Orbax's folder `params` beside `assets`.

tensorstore alone reads them (the extra `orbax`), without JAX: `_METADATA` names the arrays, and each is a
zarr array in a key-value store. A stack of layers is one array, so the host holds the largest of them while
its slices are copied to the parameters (4.8 GB in the published models). The folder does not say the horizon:
unless it is 50, put `{"action_horizon": N}` into a `config.json` beside `params`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from vla_accel_ros.models.checkpoints.description import Description
from vla_accel_ros.models.checkpoints.fields import OURS, check_fields
from vla_accel_ros.models.checkpoints.formats import Contents, Format, Options, Weights, own_sizes
from vla_accel_ros.models.checkpoints.shards import Stored, check_merged
from vla_accel_ros.models.checkpoints.streaming import empty, fill
from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.models.json_file import check_pointer, read_json
from vla_accel_ros.models.layers.fused import fused_parts
from vla_accel_ros.models.pi.checkpoint import FIELDS, make_policy, openpi_description, with_horizon
from vla_accel_ros.models.pi.jax_names import jax_config, parameter_shapes, slices
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.pi.weights import finished, pi_sources
from vla_accel_ros.models.policy import Policy

_N = TypeVar("_N", bound=nn.Module)
PARAMS, METADATA = "params", "_METADATA"
DTYPES = {"float64": "F64", "float32": "F32", "bfloat16": "BF16", "float16": "F16"}


@dataclass(frozen=True)
class Array:
    """An array of a checkpoint. name: openpi's, with slashes. store: tensorstore's handle."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    store: Any

    @property
    def bytes(self) -> int:
        """Its size in memory."""
        return math.prod(self.shape) * int(np.dtype(self.store.dtype.numpy_dtype).itemsize)

    def read(self) -> Tensor:
        """Return the whole array, in host memory. Raises ValueError if it is damaged."""
        try:
            values = np.asarray(self.store.read().result())
        except ValueError as error:
            raise ValueError(f"{self.name} cannot be read ({error}); copy the checkpoint again.") from error
        if self.dtype == "BF16":
            return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(values)


def holds(contents: Contents) -> bool:
    """Return whether the folder has Orbax parameters of a pi0 or pi0.5, and no safetensors beside them."""
    return holds_arrays(contents) and not is_fast(contents.folder)


def holds_arrays(contents: Contents) -> bool:
    """Return whether the folder has Orbax parameters and no safetensors beside them."""
    return not contents.tensors and (contents.folder / PARAMS / METADATA).is_file()


def is_fast(folder: Path) -> bool:
    """Return whether the arrays are those of PaliGemma alone."""
    tree = read_json(folder / PARAMS / METADATA).get("tree_metadata")
    names = str([*tree]) if isinstance(tree, dict) else ""
    return "'PaliGemma'" in names and "action_in_proj" not in names and "state_proj" not in names


def read_arrays(folder: Path) -> list[Array]:
    """Open every array in `folder`/params. Raises ValueError if tensorstore or an array is missing, or if
    some are adapters."""
    try:
        import tensorstore
    except ImportError as error:
        raise ValueError(
            f"{folder / PARAMS} is a JAX checkpoint and needs the package tensorstore; pip install it."
        ) from error
    path = folder / PARAMS
    data = read_json(path / METADATA)
    for file in path.rglob("*"):
        check_pointer(file)
    driver = "zarr3" if data.get("use_zarr3") else "zarr"
    packed = (path / "manifest.ocdbt").is_file()
    arrays = []
    for keys in _keys(data, path / METADATA):
        stored = ".".join(keys)
        kvstore: dict[str, Any] = {"driver": "file", "path": f"{path.resolve() / stored}/"}
        if packed:
            base = {"driver": "file", "path": f"{path.resolve()}/"}
            kvstore = {"driver": "ocdbt", "base": base, "path": f"{stored}/"}
        try:
            store = tensorstore.open({"driver": driver, "kvstore": kvstore}, open=True, read=True).result()
        except ValueError as error:
            reason = str(error).partition(" [tensorstore_spec=")[0]
            raise ValueError(f"{path}: {stored} cannot be opened ({reason}); copy it again.") from error
        dtype = str(store.dtype.name)
        arrays.append(Array(_openpi_name(keys), tuple(store.shape), DTYPES.get(dtype, dtype), store))
    check_merged(folder, [array.name for array in arrays])
    return arrays


def stored_parameters(arrays: list[Array], folder: Path) -> dict[str, Stored]:
    """Return the parameters in the arrays, as a table like that of a safetensors file."""
    return {
        parameter: Stored(folder / PARAMS, shape, array.dtype)
        for array in arrays
        for parameter, shape in parameter_shapes(array.name, array.shape).items()
    }


def read_config(contents: Contents, arrays: list[Array]) -> PiConfig:
    """Return the sizes: "vla_accel_ros" of a config.json if present, else from the arrays and
    action_horizon. Raises ValueError if a setting is unknown."""
    check_fields(contents.config, f"{contents.folder / 'config.json'}: ", FIELDS, {})
    if OURS in contents.config:
        return own_sizes(contents, PiConfig.from_json)
    try:
        config = jax_config({array.name: array.shape for array in arrays})
    except KeyError as error:
        raise ValueError(
            f"{contents.folder / PARAMS} has no array {error.args[0]}; give a checkpoint of a pi0 or pi0.5."
        ) from error
    except ValueError as error:
        raise ValueError(f"{contents.folder / PARAMS}: {error}") from error
    return with_horizon(contents, config)


def load(contents: Contents, options: Options) -> Policy:
    """See checkpoint.load_policy."""
    arrays = read_arrays(contents.folder)
    config = read_config(contents, arrays)
    read_weights = partial(load_orbax_model, arrays, config, contents.folder, options)
    return make_policy(contents, config, options, read_weights)


def load_orbax_model(arrays: list[Array], config: PiConfig, folder: Path, options: Options) -> Pi:
    """As weights.load_pi_model."""
    pi_sources(stored_parameters(arrays, folder), config, folder / PARAMS)
    return finished(filled_by(arrays, empty(Pi, config, options.dtype), folder, options))


def filled_by(arrays: list[Array], model: _N, folder: Path, options: Options) -> _N:
    """Return a model that was on `meta` with the values of the arrays, in eval mode and without gradients."""
    total, where = sum(array.bytes for array in arrays), str(folder / PARAMS)
    fill(model, array_values(arrays), options.device, total, where, options.progress, fused_parts(model))
    return model.requires_grad_(False).eval()


def describe(contents: Contents, statistics: str | None) -> Description:
    """See models.checkpoints.description."""
    arrays = read_arrays(contents.folder)
    config = read_config(contents, arrays)
    expanded = replace(contents, tensors=stored_parameters(arrays, contents.folder))
    return openpi_description(expanded, config, statistics, "openpi, JAX (Orbax)")


def weights(contents: Contents) -> Weights:
    """See formats.Weights; with openpi's names."""
    arrays = read_arrays(contents.folder)
    stored = stored_parameters(arrays, contents.folder)
    config = read_config(contents, arrays)
    pi_sources(stored, config, contents.folder / PARAMS)
    return Weights(stored, array_values(arrays), fused_parts(empty(Pi, config)))


def array_values(arrays: list[Array]) -> Iterator[tuple[str, Tensor]]:
    """Yield each parameter with its value; one array is in memory at a time."""
    for array in arrays:
        values = array.read()
        for part in slices(array.name, array.shape):
            yield part.parameter, part.of(values)
        del values


def _keys(data: dict[str, Any], file: Path) -> list[list[str]]:
    tree = data.get("tree_metadata")
    entries = list(tree.values()) if isinstance(tree, dict) else []
    keys = []
    for entry in entries:
        parts = entry.get("key_metadata") if isinstance(entry, dict) else None
        parts = parts if isinstance(parts, list) else []
        names = [str(part["key"]) for part in parts if isinstance(part, dict) and "key" in part]
        if not names or len(names) != len(parts) or any("/" in name or name in ("", "..") for name in names):
            raise ValueError(f"{file}, field tree_metadata: an array has no name; copy the checkpoint again.")
        keys.append(names)
    if not keys:
        raise ValueError(f"{file}, field tree_metadata: it must name every array; copy the checkpoint again.")
    return keys


def _openpi_name(keys: list[str]) -> str:
    """Return openpi's name, without the `params` before and the `value` after it that training adds."""
    inner = keys[1:] if keys[0] == PARAMS else keys
    return "/".join(inner[:-1] if len(inner) > 1 and inner[-1] == "value" else inner)


FORMAT = Format("openpi, JAX", holds, describe, load, weights, asks=True)
