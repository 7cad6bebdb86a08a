"""JAX checkpoints that the orbax library wrote: every parameter is what openpi's own conversion makes of it.

See test/data/orbax. What that data does not have, bfloat16 and arrays in files of their own, tensorstore
writes.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore
import torch
from folders import refused
from orbax_folder import DATA, answer, make_orbax_folder

from vla_accel_ros.models.checkpoints.checkpoint import describe, find_format, load_policy
from vla_accel_ros.models.checkpoints.formats import Contents
from vla_accel_ros.models.config import IMAGE_NAMES, PiConfig
from vla_accel_ros.models.pi.jax_names import parameter_shapes
from vla_accel_ros.models.pi.orbax_checkpoint import read_arrays


@pytest.fixture
def folder(kind: str, tmp_path: Path) -> Path:
    """The step's folder of a training run, and the tokeniser."""
    return make_orbax_folder(tmp_path / "29999", kind)


def test_every_parameter_is_openpis(folder: Path, kind: str) -> None:
    expected = json.loads((DATA / f"{kind}_expected.json").read_text())
    parameters = dict(load_policy(folder, trained_as=answer(folder)).model.named_parameters())
    assert parameters.keys() == expected.keys()
    for name, (shape, digest) in expected.items():
        assert list(parameters[name].shape) == shape, name
        assert hashlib.sha256(parameters[name].numpy().tobytes()).hexdigest() == digest, name
    assert all(parameter.is_contiguous() for parameter in parameters.values())


def test_sizes_are_read_off_the_arrays_but_for_the_horizon(folder: Path, kind: str) -> None:
    assert find_format(Contents.of(folder)).name == "openpi, JAX"
    config = describe(folder).config
    assert isinstance(config, PiConfig)
    assert (config.kind, config.horizon, config.image_names) == (kind, 50, IMAGE_NAMES)
    assert (config.vision.heads, config.prefix.heads, config.expert.head_dim) == (4, 4, 8)
    said = answer(folder).replace("action_horizon=50", "")
    (folder / "config.json").write_text('{"action_horizon": 10}')
    assert describe(folder, trained_as=said).horizon == 10
    assert describe(folder, trained_as=said).missing == ()


def rewrite(folder: Path, change: dict[str, np.ndarray | None], driver: str = "zarr") -> None:
    """The same arrays, or others, as files of their own; None leaves one out."""
    arrays: dict[str, Any] = {array.name: array.store.read().result() for array in read_arrays(folder)}
    path = folder / "params"
    shutil.rmtree(path)
    tree = {}
    for name, values in {**arrays, **change}.items():
        if values is None:
            continue
        keys = ["params", *name.split("/")]
        spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{path / '.'.join(keys)}/"}}
        dtype, shape = tensorstore.dtype(values.dtype), values.shape
        tensorstore.open(spec, create=True, dtype=dtype, shape=shape).result().write(values).result()
        tree[str(keys)] = {"key_metadata": [{"key": key, "key_type": 2} for key in keys]}
    metadata = {"tree_metadata": tree, "use_ocdbt": False, "use_zarr3": driver == "zarr3"}
    (path / "_METADATA").write_text(json.dumps(metadata))


@pytest.mark.parametrize("driver", ["zarr", "zarr3"])
def test_arrays_may_be_files_of_their_own(folder: Path, driver: str) -> None:
    before = load_policy(folder, trained_as=answer(folder)).model.state_dict()
    rewrite(folder, {}, driver)
    after = load_policy(folder, trained_as=answer(folder)).model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_bfloat16_arrays(folder: Path) -> None:
    whole = load_policy(folder, trained_as=answer(folder)).model.state_dict()
    half = tensorstore.bfloat16.numpy_dtype
    rewrite(folder, {a.name: a.store.read().result().astype(half) for a in read_arrays(folder)})
    assert {stored.dtype for stored in describe(folder).tensors.values()} == {"BF16"}
    loaded = load_policy(folder, trained_as=answer(folder)).model.state_dict()
    assert all(torch.equal(loaded[name], tensor.bfloat16().float()) for name, tensor in whole.items())


def test_everything_wrong_is_in_one_error(folder: Path) -> None:
    sizes = describe(folder).config.to_json()
    rewrite(
        folder,
        {
            "action_in_proj/kernel": None,
            "action_out_proj/bias": np.zeros(5, np.float32),
            "PaliGemma/llm/layers/attn/q_einsum/b": np.zeros((2, 3), np.float32),
            "PaliGemma/img/head/bias": np.zeros(32, np.int32),
        },
    )
    (folder / "config.json").write_text(json.dumps({"vla_accel_ros": sizes}))
    refused(
        folder,
        "missing ['action_in_proj.weight']",
        "unexpected ['PaliGemma/llm/layers/attn/q_einsum/b']",
        "misshapen ['action_out_proj.bias [5] instead of [8]']",
        "multi_modal_projector.linear.bias int32",
    )


def test_adapters_of_a_low_memory_training_are_refused(folder: Path) -> None:
    rewrite(folder, {"PaliGemma/llm/layers/attn/q_einsum/lora_a": np.zeros((2, 3), np.float32)})
    refused(folder, "has LoRA adapters (PaliGemma/llm/layers/attn/q_einsum/lora_a)", "merge them")


def test_an_array_with_other_axes_is_named() -> None:
    with pytest.raises(ValueError, match=r"q_einsum/w has shape \[2\]"):
        parameter_shapes("PaliGemma/llm/layers/attn/q_einsum/w", (2,))


def test_damaged_checkpoints_are_refused(folder: Path) -> None:
    largest = max((folder / "params").rglob("d/*"), key=lambda path: path.stat().st_size)
    whole = largest.read_bytes()
    largest.write_bytes(whole[: len(whole) // 2])
    said = answer(folder)
    refused(folder, "params", "copy", trained_as=said)
    largest.unlink()
    refused(folder, "params", "copy", trained_as=said)
    for file in (folder / "params").rglob("manifest.ocdbt"):
        file.write_bytes(b"")
    with pytest.raises(ValueError, match="manifest") as caught:
        describe(folder)
    assert "driver\\" not in str(caught.value)
    (folder / "params" / "_METADATA").write_text("{}")
    refused(folder, "_METADATA, field tree_metadata: it must name every array")
    (folder / "params" / "_METADATA").write_text(
        '{"tree_metadata": {"a": {"key_metadata": [{"key": "../a"}]}}}'
    )
    refused(folder, "_METADATA, field tree_metadata: an array has no name")
    (folder / "params" / "_METADATA").write_text("{")
    refused(folder, "_METADATA is not readable JSON")


def test_numbers_that_are_not_finite_are_refused(folder: Path) -> None:
    bias = np.zeros(8, np.float32)
    bias[3] = np.nan
    rewrite(folder, {"action_out_proj/bias": bias})
    said = answer(folder)
    refused(folder, "not every number is finite in ['action_out_proj.bias']", trained_as=said)


def test_the_package_is_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorstore", None)
    refused(folder, "is a JAX checkpoint and needs the package tensorstore")


def test_progress_is_told_to_the_end(folder: Path) -> None:
    told: list[tuple[int, int]] = []
    load_policy(folder, trained_as=answer(folder), progress=lambda done, total: told.append((done, total)))
    assert told[-1][0] == told[-1][1] == sum(array.bytes for array in read_arrays(folder))
