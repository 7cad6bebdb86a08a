"""Vision weights in page-locked memory on a GPU: captured and replayed in a row, to the bit; memory is freed.

The image encoder has the published size, so that its kernels are those of the device's table, early starts
included.
"""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import make_config, make_observation, make_policy
from openvla_builders import make_openvla_config, make_openvla_folder, make_openvla_observation
from torch import Tensor

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.stages.memory.offload_report import measure
from vla_accel_ros.engine.stages.prefill.encode import Encode, tower_of
from vla_accel_ros.kernels.ops import ops_for
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.config import PI0, VisionConfig
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.processing.conventions import OPENPI

pytestmark = pytest.mark.gpu
FRAMES, RUNS = 4, 3
SMALL = VisionConfig(width=32, depth=7, mlp=64, heads=4, image_size=28, patch=14)


@pytest.fixture(scope="module")
def model() -> Pi:
    """The published encoder and little else, in bfloat16."""
    with torch.device("cuda"):
        model = Pi(make_config(vision=PI0.vision))
    generator = torch.Generator("cuda").manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 0.1 if parameter.ndim == 1 else parameter[0].numel() ** -0.5
            parameter.normal_(0.0, spread, generator=generator)
    return model.set_precision(torch.bfloat16).eval()


def encoder(model: Pi, views: int, share: float, slots: int | None = None) -> Encode:
    tower = tower_of(model, share, slots)
    return Encode(model, ops_for(model.embed_table.device), views, OPENPI.pixels, tower)


def tokens(encode: Encode, views: int) -> list[Tensor]:
    """Of frames that are replayed one after another, several times each, without waiting for any."""
    frames = np.random.default_rng(views).integers(0, 256, (FRAMES, views, 224, 224, 3), np.uint8)
    made = []
    with torch.inference_mode():
        for frame in frames:
            encode.upload.take(list(frame))
            encode.capture()
            for _ in range(RUNS):
                encode.run()
                made.append(encode.tokens.clone())
            encode.upload.read()
    torch.cuda.synchronize()
    assert encode.captured
    return made


def allocated() -> int:
    gc.collect()
    torch.cuda.synchronize()
    return int(torch.cuda.memory_stats()["requested_bytes.all.current"])


@pytest.mark.parametrize("views", [1, 2, 3])
@pytest.mark.parametrize(("share", "slots"), [(0.1, 1), (0.5, 1), (0.5, 2), (1.0, 1), (1.0, 2), (1.0, 3)])
def test_replays_have_the_bits_of_resident_weights(model: Pi, views: int, share: float, slots: int) -> None:
    expected = tokens(encoder(model, views, 0.0), views)
    ours = tokens(encoder(model, views, share, slots), views)
    assert all(torch.equal(one, other) for one, other in zip(ours, expected, strict=True))
    assert not torch.equal(expected[0], expected[-1]) and bool(expected[0].isfinite().all())


def test_stages_of_one_ring_may_alternate(model: Pi) -> None:
    expected = {views: tokens(encoder(model, views, 0.0), views) for views in (1, 2)}
    tower = tower_of(model, 1.0)
    ops = ops_for(model.embed_table.device)
    stages = {views: Encode(model, ops, views, OPENPI.pixels, tower) for views in (1, 2)}
    for views in (1, 2, 1, 2):
        ours = tokens(stages[views], views)
        assert all(torch.equal(one, other) for one, other in zip(ours, expected[views], strict=True))


def test_memory_is_freed_and_a_resident_tower_takes_it_again(model: Pi) -> None:
    resident = tower_of(model)
    before, layer = allocated(), resident.total_bytes // resident.layers
    del resident
    tower = tower_of(model, 1.0, 2)
    assert tower.saved_bytes == 25 * layer
    assert before - allocated() == pytest.approx(tower.saved_bytes, rel=0.01)
    del tower
    tower_of(model)
    assert allocated() == pytest.approx(before, rel=0.01)


def test_a_ring_still_works_when_another_has_moved_the_weights(model: Pi) -> None:
    expected = tokens(encoder(model, 1, 0.0), 1)
    first = encoder(model, 1, 0.5)
    tokens(first, 1)
    others = [encoder(model, 1, 1.0), encoder(model, 1, 0.0)]
    for encode in (first, *others):
        assert all(torch.equal(one, other) for one, other in zip(tokens(encode, 1), expected, strict=True))


def test_what_copies_cost_is_measured(model: Pi) -> None:
    expected = tokens(encoder(model, 1, 0.0), 1)
    tower = tower_of(model, 1.0)
    encode = Encode(model, ops_for(model.embed_table.device), 1, OPENPI.pixels, tower)
    tokens(encode, 1)
    with torch.inference_mode():
        report = measure(encode, [tower])
    assert report.bandwidth > 0 and 0 < report.tower_s < report.offloaded_s
    assert all(torch.equal(one, other) for one, other in zip(tokens(encode, 1), expected, strict=True))


@pytest.mark.parametrize("option", ["vision", "vision:0.3"])
def test_chunks_have_the_same_bits(option: str) -> None:
    chunks = []
    for chosen in ("none", option):
        policy = make_policy("pi0", device="cuda", vision=SMALL)
        engine = Engine(policy, fast=True, offload=chosen)
        engine.prepare((2,), (20,))
        for seed in (0, 1, 2):
            with engine.observe(make_observation(seed)) as prefix:
                chunks.append(engine.act(prefix).actions)
    report = engine.runner.offload
    assert report is not None and report.tower_s > 0 and "vision takes" in str(report)
    np.testing.assert_array_equal(chunks[:3], chunks[3:])


@pytest.mark.parametrize("option", ["vision", "vision:0.3"])
def test_actions_of_openvla_have_the_same_bits(option: str, tmp_path: Path) -> None:
    config = make_openvla_config(
        dino=VisionConfig(width=24, depth=6, mlp=48, heads=4, image_size=28, patch=14),
        siglip=VisionConfig(width=20, depth=8, mlp=36, heads=2, image_size=28, patch=14),
    )
    folder, seen = make_openvla_folder(tmp_path / "folder", config), []
    for chosen in ("none", option):
        engine = Engine(load_policy(folder, "cuda", torch.bfloat16), fast=True, offload=chosen)
        engine.prepare((1,), (8,))
        towers = engine.runner.towers
        assert towers is not None
        for seed in (0, 1, 2):
            with engine.observe(make_openvla_observation(seed)):
                seen.append(towers.tokens.clone())
    assert all(torch.equal(one, other) for one, other in zip(seen[:3], seen[3:], strict=True))
    assert engine.runner.offload is not None and engine.runner.offload.layers == 12
