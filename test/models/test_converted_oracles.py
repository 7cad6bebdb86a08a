"""Recordings of the references are met by folders that were converted from their weights, too.

The weights of a recording get the small files of a checkpoint, are converted, and loaded by the door; what
the loaded network computes is compared as in test_oracles.py, and so is a chunk of the fast stages, which
take what was folded.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from builders import make_stats, make_tokenizer
from openvla_builders import make_llama_tokenizer, make_norm_stats
from openvla_oracle import OpenVLAOracle
from oracle import DTYPES, FOLDER, Oracle, fixture_names
from oracle_agreement import agree, bound, distance
from oracle_runs import Run

from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.stages.stages import Stages
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.checkpoints.conversion import convert
from vla_accel_ros.models.checkpoints.shards import read_table

FAST = 2e-5  # the stages' references sum in another order


@pytest.fixture(autouse=True)
def without_gradients() -> object:
    with torch.no_grad():
        yield


@pytest.fixture(params=fixture_names("pi0", "pi05"))
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    oracle, folder = Oracle.load(request.param), tmp_path / "source"
    (folder / "assets" / "arm").mkdir(parents=True)
    stats = {"norm_stats": {"state": make_stats(), "actions": make_stats()}}
    (folder / "assets" / "arm" / "norm_stats.json").write_text(json.dumps(stats))
    (folder / "config.json").write_text(json.dumps({"vla_accel_ros": oracle.config.to_json()}))
    make_tokenizer().save(str(folder / "tokenizer.json"))
    shutil.copyfile(FOLDER / f"{request.param}.safetensors", folder / "model.safetensors")
    out = convert(folder, tmp_path / "out")
    assert any(stored.part for stored in read_table(out).values())
    return Run(oracle, "packed", load_policy(out, dtype=DTYPES[oracle.spec["dtype"]]).model)


def test_the_network(run: Run) -> None:
    agree(run, Run.hidden, run.recorded("prefix_out"))
    agree(run, lambda run: run.keys_or_values("k"), run.recorded_kv("k"))
    agree(run, Run.velocities, run.oracle["v_t"])
    agree(run, lambda run: run.actions("openpi"), run.oracle["actions"])
    agree(run, Run.scores, run.oracle["text_logits"])


def test_a_chunk_of_the_fast_stages(run: Run) -> None:
    model, oracle, steps = run.model, run.oracle, run.oracle.spec["num_steps"]
    config, device = model.config, torch.device("cpu")
    pool = KVPool(config.prefix, oracle.batch, config.max_tokens, device, model.language_model.dtype)
    stages, chunks = Stages(model, pool), []
    for slot, (_, kv, _) in enumerate(run._prefixes):
        length = kv.k.shape[3]
        for place, values in zip(pool.view(slot, length), kv, strict=True):
            place.copy_(values)
        noise, state = oracle["noise"][slot : slot + 1], oracle["state"][slot : slot + 1]
        given = state if config.kind == "pi0" else None
        chunks.append(stages.act(noise.float(), given, [slot], [length], steps).actions)
    off = bound(run, lambda run: run.actions("openpi"), oracle["actions"])
    assert distance(torch.cat(chunks), oracle["actions"]) <= off + FAST


@pytest.mark.parametrize("name", fixture_names("openvla"))
def test_openvla(name: str, tmp_path: Path) -> None:
    oracle, folder = OpenVLAOracle.load(name), tmp_path / "source"
    folder.mkdir()
    said = {"model_type": "openvla", "norm_stats": make_norm_stats("one")}
    (folder / "config.json").write_text(json.dumps({**said, "vla_accel_ros": oracle.config.to_json()}))
    make_llama_tokenizer().save(str(folder / "tokenizer.json"))
    shutil.copyfile(FOLDER / f"{name}.safetensors", folder / "model.safetensors")
    out = convert(folder, tmp_path / "out")
    model = load_policy(out).model.to(DTYPES[oracle.spec["dtype"]])
    converted = replace(oracle, model=model)
    agree(converted, OpenVLAOracle.image_tokens, oracle["projected"])
    agree(converted, OpenVLAOracle.scores, oracle["logits"])
    before = oracle.model.state_dict()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
