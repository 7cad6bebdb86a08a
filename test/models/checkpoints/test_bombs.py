"""Small files of a checkpoint that ask for much are refused before they get it, in one sentence."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from bombs import refused
from builders import make_config

from vla_accel_ros.kernels.gpu import Gpu
from vla_accel_ros.kernels.tuning import read_table
from vla_accel_ros.models.checkpoints.checkpoint import describe
from vla_accel_ros.models.checkpoints.shards import open_weights
from vla_accel_ros.models.config import PI0, PI05, PiConfig
from vla_accel_ros.models.json_file import read_json
from vla_accel_ros.models.openvla.config import OPENVLA_7B, OpenVLAConfig
from vla_accel_ros.models.smolvla.config import SMOLVLA, SmolVLAConfig
from vla_accel_ros.models.text.tokenizer import load_tokenizer


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[" * 1_000_000, "is nested too deeply"),
        ('{"a":' * 500_000, "is nested too deeply"),
        ("[" + "[]," * 2_000_000 + "[]]", "has 6000004 bytes, no such file has more than 4194304"),
        ("[" + "[]," * 1_390_000 + "[]]", "holds a list; it must hold an object"),
        ('{"depth": ' + "9" * 100_000 + "}", "is not readable JSON"),
    ],
    ids=["lists", "objects", "large", "just not too large", "digits"],
)
def test_json(tmp_path, text, sentence):
    file = tmp_path / "config.json"
    file.write_text(text)
    assert sentence in refused(lambda: read_json(file)).sentence


@pytest.mark.parametrize(
    ("field", "value"),
    [("depth", 10**9), ("width", 10**9), ("mlp", 10**12), ("heads", 10**6), ("depth", 10**4000)],
)
@pytest.mark.parametrize("part", ["prefix", "expert", "vision"])
def test_sizes_of_a_network(part, field, value):
    data = make_config("pi05").to_json()
    data[part][field] = value
    if part != "vision":
        for other in ("prefix", "expert"):
            data[other][field] = value
    found = refused(lambda: PiConfig.from_json(data))
    assert f".{field} is " in found.sentence and "no model here has more than" in found.sentence


@pytest.mark.parametrize("field", ["vocab", "horizon", "max_prompt", "action_dim", "state_dim"])
def test_sizes_around_a_network(field):
    data = make_config("pi05").to_json() | {field: 10**9}
    assert f"config.{field} is 1000000000; no model" in refused(lambda: PiConfig.from_json(data)).sentence


def test_sizes_of_published_models_are_within_the_bounds():
    for kind, config in (
        (PiConfig, PI0),
        (PiConfig, PI05),
        (OpenVLAConfig, OPENVLA_7B),
        (SmolVLAConfig, SMOLVLA),
    ):
        assert kind.from_json(config.to_json()) == config


@pytest.mark.parametrize("field", ["vocab", "max_prompt", "registers"])
def test_sizes_around_openvla(field):
    data = OPENVLA_7B.to_json() | {field: 10**12}
    assert f"config.{field} is 1000000000000; no" in refused(lambda: OpenVLAConfig.from_json(data)).sentence


def weights(file: Path, header: bytes, claimed: int | None = None) -> Path:
    file.write_bytes(struct.pack("<Q", len(header) if claimed is None else claimed) + header + bytes(8))
    return file


@pytest.mark.parametrize(
    ("header", "claimed", "sentence"),
    [
        (b"{}", 1 << 60, "a header of 1152921504606846976 bytes, at most 4194304 are read"),
        (b"{" + b" " * (5 << 20) + b"}", None, "at most 4194304 are read"),
        (b"[" * (1 << 20), None, "is not a readable safetensors file"),
        (
            json.dumps({"w": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 8]}}).encode(),
            None,
            "is not a readable safetensors file",
        ),
    ],
    ids=["claims", "long", "deep", "overflow"],
)
def test_headers_of_safetensors(tmp_path, header, claimed, sentence):
    file = weights(tmp_path / "model.safetensors", header, claimed)
    assert sentence in refused(lambda: open_weights(file)).sentence


def test_a_layer_of_a_very_high_number(tmp_path):
    root = "paligemma_with_expert.paligemma.model.language_model.layers."
    header = {root + "999999999.x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    weights(tmp_path / "model.safetensors", json.dumps(header).encode())
    assert refused(lambda: describe(tmp_path)).sentence


def test_a_tokenizer(tmp_path):
    file = tmp_path / "tokenizer.json"
    with file.open("wb") as sparse:
        sparse.truncate(65 << 20)
    found = refused(lambda: load_tokenizer(tmp_path, 100))
    assert "has 68157440 bytes, no such file has more than 67108864" in found.sentence
    file.write_text("[" * 1_000_000)
    assert "is not a readable tokenizer.json" in refused(lambda: load_tokenizer(tmp_path, 100)).sentence


@pytest.mark.parametrize("text", ["[" * 1_000_000, " " * (5 << 20)], ids=["deep", "long"])
def test_a_tuning_table(text):
    assert "table.json is no tuning table" in refused(lambda: read_table(text, "table.json", Gpu(1))).sentence
