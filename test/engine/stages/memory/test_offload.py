"""Vision weights in host memory: the same bits for every share and number of slots; who is refused, and how.

The ring is the same on a CPU, where copies are synchronous: one that comes too early overwrites a layer that
is still to be computed, one that comes too late leaves another's weights. test_offload_gpu has what only a
GPU has.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import make_config, make_model, make_observation, make_policy
from openvla_builders import make_openvla_config, make_openvla_folder, make_openvla_observation
from smolvla_recording import make_smolvla_folder
from torch import Tensor, nn

from vla_accel_ros.engine.config import EngineConfig, offload_share
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.runner.frames import EncodeOnly
from vla_accel_ros.engine.stages.memory import offload
from vla_accel_ros.engine.stages.memory.offload import LayerRing, slots_for, spread
from vla_accel_ros.engine.stages.memory.offload_report import OffloadReport
from vla_accel_ros.engine.stages.stages import Stages
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.config import VisionConfig
from vla_accel_ros.models.smolvla.model import SmolVLA

CPU = torch.device("cpu")
VISION = VisionConfig(width=24, depth=7, mlp=48, heads=4, image_size=28, patch=14)
OPTIONS = ("vision", "vision:0.5", "vision:0.2")


def make_layers(count: int) -> list[list[list[nn.Linear]]]:
    """Of three matrices each: two of one product, and one whose size is no multiple of the alignment."""
    g = torch.Generator().manual_seed(count)
    made = []
    for _ in range(count):
        linears = [nn.Linear(8, 5), nn.Linear(8, 5), nn.Linear(8, 3), nn.Linear(7, 9)]
        for linear in linears:
            linear.weight.data = torch.randn(linear.weight.shape, generator=g)
        made.append([linears[:2], linears[2:3], linears[3:]])
    return made


def weights(layers: list[list[list[nn.Linear]]]) -> list[list[Tensor]]:
    return [[torch.cat([linear.weight.data for linear in group]) for group in layer] for layer in layers]


def assert_gives(ring: LayerRing, expected: list[list[Tensor]]) -> None:
    """In two runs, while each layer is computed."""
    for _ in range(2):
        for given, matrices in zip(ring, expected, strict=True):
            assert [matrix.tolist() for matrix in given] == [matrix.tolist() for matrix in matrices]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 2, 7, 12])
def test_a_layer_is_computed_with_its_own_weights(count: int, slots: int, share: float) -> None:
    layers = make_layers(count)
    expected = weights(layers)
    ring = LayerRing(layers, share, CPU, slots)
    assert_gives(ring, expected)
    assert ring.slots == min(slots, len(ring.streamed))
    assert [len(layer) for layer in weights(layers)] == [3] * count
    for ours, before in zip(weights(layers), expected, strict=True):  # what the plain modules have
        assert all(torch.equal(one, other) for one, other in zip(ours, before, strict=True))


def test_a_slot_has_one_layer_after_another() -> None:
    ring = LayerRing(make_layers(6), 1.0, CPU, 2)
    places = [matrices[0].data_ptr() for matrices in ring]
    assert places == places[:2] * 3 and places[0] != places[1]
    assert ring.saved_bytes == 4 * ring.total_bytes // 6 and ring.streamed_bytes == ring.total_bytes


class Told(LayerRing):
    """Notes what is copied."""

    def __init__(self, *given: Any) -> None:
        self.copied: list[int] = []
        super().__init__(*given)

    def _copy(self, number: int) -> None:
        self.copied.append(number)
        super()._copy(number)


def test_a_layer_is_copied_once_a_run_and_as_early_as_its_slot_is_free() -> None:
    ring, seen = Told(make_layers(8), 0.5, CPU, 2), []
    for _ in ring:
        seen.append(list(ring.copied))
    ahead, third, fourth = [0, 1], [0, 1, 2], [0, 1, 2, 3]
    assert ring.streamed == (1, 3, 5, 7)
    assert seen == [ahead, ahead, third, third, fourth, fourth, fourth, fourth]


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("cuts", [(0, 3, 7), (0, 1, 2, 7), (0, 6, 7)])
def test_layers_may_be_computed_in_groups(cuts: tuple[int, ...], slots: int) -> None:
    layers = make_layers(7)
    expected, ring = weights(layers), LayerRing(layers, 0.6, CPU, slots)
    for _ in range(2):
        for first, end in pairwise(cuts):
            for given, matrices in zip(ring.between(first, end), expected[first:end], strict=True):
                assert [matrix.tolist() for matrix in given] == [matrix.tolist() for matrix in matrices]


def test_streamed_weights_leave_the_memory_that_they_were_in() -> None:
    layers = make_layers(4)
    before = [layer[1][0].weight.data_ptr() for layer in layers]
    ring = LayerRing(layers, 0.5, CPU)
    after = [layer[1][0].weight.data_ptr() for layer in layers]
    assert [index for index in range(4) if before[index] != after[index]] == list(ring.streamed) == [1, 3]


def test_rings_of_one_tower_do_not_disturb_each_other() -> None:
    layers = make_layers(8)
    expected = weights(layers)
    rings = [LayerRing(layers, share, CPU, 1) for share in (0.5, 0.0, 1.0, 0.3)]
    for ring in rings:
        assert_gives(ring, expected)


@pytest.mark.parametrize("layers", [1, 2, 5, 27, 63])
@pytest.mark.parametrize("share", [1e-9, 0.1, 0.34, 0.5, 0.77, 1.0])
def test_streamed_layers_are_as_far_apart_as_can_be(layers: int, share: float) -> None:
    streamed = spread(layers, share)
    gaps = np.diff((0, *streamed))
    assert len(streamed) == max(1, round(layers * share)) and streamed[-1] == layers - 1
    assert all(gaps[1:] >= 1) and gaps.max() - gaps.min() <= 1


def test_one_slot_is_enough_where_resident_layers_lie_between() -> None:
    assert spread(9, 0.0) == () and slots_for(9, 0) == 0
    assert [slots_for(9, streamed) for streamed in (1, 3, 4, 9)] == [1, 1, 2, 2]
    assert slots_for(1, 1) == 1


@pytest.mark.parametrize("option", OPTIONS)
def test_chunks_and_answers_have_the_same_bits(kind: str, option: str) -> None:
    chunks, texts = [], []
    for chosen in ("none", option):
        engine = Engine(make_policy(kind, vision=VISION), fast=True, offload=chosen)
        for seed in (0, 1):
            with engine.observe(make_observation(seed)) as prefix:
                chunks.append(engine.act(prefix).actions)
                texts.append("".join(engine.ask(prefix, max_tokens=4)))
    np.testing.assert_array_equal(chunks[:2], chunks[2:])
    assert texts[:2] == texts[2:] and not np.array_equal(chunks[0], chunks[1])


@pytest.mark.parametrize("option", OPTIONS)
def test_actions_of_openvla_have_the_same_bits(option: str, tmp_path: Path) -> None:
    config = make_openvla_config(
        dino=VisionConfig(width=24, depth=6, mlp=48, heads=4, image_size=28, patch=14),
        siglip=VisionConfig(width=20, depth=8, mlp=36, heads=2, image_size=28, patch=14),
    )
    folder, kept = make_openvla_folder(tmp_path / "folder", config), []
    for chosen in ("none", option):
        engine = Engine(load_policy(folder), fast=True, offload=chosen)
        for seed in (0, 1):
            with engine.observe(make_openvla_observation(seed)) as prefix:
                encoded = engine.runner.prefill
                assert isinstance(encoded, EncodeOnly)
                kept.append(encoded.embeddings(prefix.slot, prefix.n_tokens).clone())
                kept.append(torch.from_numpy(engine.act(prefix).actions))
    assert all(torch.equal(one, other) for one, other in zip(kept[:4], kept[4:], strict=True))
    assert not torch.equal(kept[0], kept[2])


@pytest.mark.parametrize("groups", [2, 5])
def test_frames_in_groups_of_layers_have_the_same_bits(groups: int) -> None:
    chunks, options = [], dict[str, Any](offload="vision", prefill_groups=groups)
    for given in ({}, options):
        engine = Engine(make_policy("pi0", vision=VISION), EngineConfig(fast=True, **given))
        for seed in (0, 1):
            with engine.observe(make_observation(seed)) as prefix:
                chunks.append(engine.act(prefix).actions)
    np.testing.assert_array_equal(chunks[:2], chunks[2:])


def test_stages_of_other_numbers_of_images_share_the_ring() -> None:
    model = make_model(make_config(vision=VISION))
    images = np.random.default_rng(0).integers(0, 256, (2, 28, 28, 3), np.uint8)
    seen = []
    for share in (0.0, 1.0):
        pool = KVPool(model.config.prefix, 3, model.config.max_tokens, CPU, torch.float32)
        stages = Stages(model, pool, offload=share)
        for views in (1, 2, 1):
            stages.observe([images[:views]], [torch.ones(3, dtype=torch.int64)], [1])
            seen.append(stages.encode(views).tokens.clone())
        assert stages.tower.slots == (2 if share else 0)
    assert all(torch.equal(one, other) for one, other in zip(seen[:3], seen[3:], strict=True))


@pytest.mark.parametrize(
    ("option", "share"), [("none", 0.0), ("vision", 1.0), ("vision:0.25", 0.25), ("vision:1", 1.0)]
)
def test_the_option_is_a_share(option: str, share: float) -> None:
    assert offload_share(option) == share
    EngineConfig(offload=option)


def test_small_copies_of_the_expert_go_with_streamed_vision_weights() -> None:
    policy = make_policy(vision=VISION)
    assert Engine(policy, fast=True, offload="vision", precision="int8").runner.stages is not None


def test_a_family_without_kernels_is_refused(tmp_path: Path) -> None:
    policy = load_policy(make_smolvla_folder(tmp_path / "folder"))
    policy.model.__class__ = type("Unknown", (SmolVLA,), {})
    with pytest.raises(ValueError, match=r"fast stages .*smolvla"):
        Engine(policy, fast=True, offload="vision")


def test_a_host_with_too_little_memory_is_said_before_anything_is_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = make_policy(vision=VISION)
    monkeypatch.setattr(offload, "available_bytes", lambda: 10_000)
    why = r"needs 0\.00 GB of page-locked host memory, but 0\.00 GB are available; use a smaller share"
    with pytest.raises(ValueError, match=why):
        Engine(policy, fast=True, offload="vision")
    with Engine(policy, fast=True).observe(make_observation()) as prefix:
        assert prefix.n_tokens > 0
    monkeypatch.setattr(offload, "available_bytes", lambda: None)
    assert Engine(policy, fast=True, offload="vision").runner.stages is not None


def test_the_report_is_made_when_the_engine_is_prepared() -> None:
    engine = Engine(make_policy(vision=VISION), fast=True, offload="vision:0.5")
    assert engine.runner.offload is None
    engine.prepare((1,), (20,))
    report = engine.runner.offload
    assert report is not None and (report.layers, report.streamed) == (7, 4)
    layer = 4 * (4 * 24 * 24 + 2 * 24 * 48)
    assert (report.total_bytes, report.streamed_bytes, report.saved_bytes) == (
        7 * layer,
        4 * layer,
        layer,
    )
    assert str(report).endswith("in host memory, where the model runs, too: nothing is saved")
    without = Engine(replace(engine.policy), fast=True)
    without.prepare((1,), (20,))
    assert without.runner.offload is None


SLOW = OffloadReport(27, 27, 823_000_000, 823_000_000, 762_000_000, 50e9, 2e-3, 16.5e-3)
FAST = OffloadReport(63, 63, 8_555_000_000, 8_555_000_000, 8_284_000_000, 50e9, 0.2, 0.201)


def test_a_bandwidth_below_s_over_t_hides_a_part() -> None:
    assert SLOW.needed_bandwidth == pytest.approx(411.5e9)
    assert SLOW.hidden_share == pytest.approx(50 / 411.5) and not SLOW.hidden
    assert str(SLOW) == (
        "offload: the weights of 27 of 27 vision layers (823 MB of 823 MB) are in host memory, which frees "
        "762 MB of the GPU; a bandwidth of 50.0 GB/s does not hide all weights (S/T is 411.5 GB/s), it can "
        "hide 12% of them; vision takes 2.00 ms without copies and 16.50 ms with them (+725.0%)"
    )


def test_one_above_hides_all() -> None:
    assert FAST.hidden_share == 1.0 and FAST.hidden
    assert "50.0 GB/s hides all weights (S/T is 42.8 GB/s), it can hide 100% of them" in str(FAST)
    assert str(FAST).endswith("201.00 ms with them (+0.5%)")


def test_nothing_measured_is_not_hidden() -> None:
    assert not OffloadReport(2, 2, 10, 10, 0).hidden
