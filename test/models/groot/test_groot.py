"""The GR00T network beside its recordings (test_oracles.py): batches of different robots, and what sees
what."""

from __future__ import annotations

import pytest
import torch
from closeness import assert_near
from groot_builders import DATA, KINDS
from torch import Tensor

from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.flow.sampling import flow_times
from vla_accel_ros.models.groot.model import Groot
from vla_accel_ros.models.layers.gemma import KV

pytestmark = pytest.mark.usefixtures("without_gradients")

FOLDERS = {"groot_n1_7": "checkpoint", "groot_n1_5": "checkpoint_lerobot"}


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest) -> Groot:
    network = load_policy(DATA / request.param / FOLDERS[request.param]).model
    assert isinstance(network, Groot)
    return network


def features(model: Groot, tokens: int, seed: int) -> Tensor:
    return torch.randn(1, tokens, model.config.text.width, generator=torch.Generator().manual_seed(seed))


def chunk(model: Groot, seed: int) -> tuple[Tensor, Tensor]:
    """Noisy actions [1, H, A] and a state [1, S]."""
    generator, config = torch.Generator().manual_seed(seed), model.config
    x = torch.randn(1, config.horizon, config.action_dim, generator=generator)
    return x, torch.rand(1, config.state_dim, generator=generator)


def images_first(tokens: int, images: int) -> Tensor:
    return (torch.arange(tokens) < images)[None]


def test_rows_of_different_robots_are_what_each_is_alone(model: Groot) -> None:
    """Other embodiments, states, flow times, and prefixes of other lengths, which are padded."""
    lengths, numbers, times = (9, 6, 7), torch.tensor([3, 0, 3]), torch.tensor([1.0, 0.5, 0.25])
    alone, kvs, inputs = list[Tensor](), list[KV](), list[tuple[Tensor, Tensor, Tensor]]()
    for row, length in enumerate(lengths):
        kv, (x, state), image = (
            model.prefix(features(model, length, row)),
            chunk(model, row),
            images_first(length, 4),
        )
        alone.append(model.velocity(x, times[row : row + 1], state, kv, numbers[row : row + 1], image))
        kvs.append(kv)
        inputs.append((x, state, image))
    longest = max(lengths)

    def padded(part: Tensor, axis: int) -> Tensor:
        shape = [*part.shape]
        shape[axis] = longest - shape[axis]
        return torch.cat((part, torch.ones(shape).to(part.dtype)), dim=axis)

    kv = KV(*(torch.cat([padded(part, 3) for part in parts], dim=1) for parts in zip(*kvs, strict=True)))
    x, state = (torch.cat([row[index] for row in inputs]) for index in (0, 1))
    image = torch.cat([padded(row[2], 1) for row in inputs])
    valid = torch.arange(longest)[None] < torch.tensor(lengths)[:, None]
    assert_near(model.velocity(x, times, state, kv, numbers, image, valid), torch.cat(alone))


def test_keys_and_values_are_written_where_asked(model: Groot) -> None:
    read = features(model, 8, 0)
    kv = model.prefix(read)
    place = KV(torch.full_like(kv.k, 7.0), torch.full_like(kv.v, 7.0))
    assert model.prefix(read, place) is place
    assert torch.equal(place.k, kv.k)
    assert kv.k.shape[:4] == (model.config.prefix.depth, 1, model.config.prefix.kv_heads, 8)


def test_a_flow_time_is_in_the_references_bucket(model: Groot) -> None:
    """int(k / N * 1000) of the reference, for any number of steps, however the time was rounded."""
    for steps in range(1, 101):
        buckets = [int(model.buckets(torch.tensor([t]))) for t in flow_times(steps, "lerobot")]
        assert buckets == [int(k / float(steps) * 1000) for k in range(steps)]


@pytest.mark.parametrize("model", ["groot_n1_7"], indirect=True)  # N1.5 has one size
def test_images_of_other_sizes_are_computed_by_themselves(model: Groot) -> None:
    generator = torch.Generator().manual_seed(1)
    wide, tall = (torch.rand(1, 3, *size, generator=generator) for size in ((64, 96), (96, 32)))
    tokens, taps = model.encode(torch.cat((wide, wide + 0.1)))
    alone, _ = model.encode(wide)
    assert_near(tokens[:1], alone)
    assert tokens.shape[:2] == (2, 6)
    assert taps.shape[1] == len(model.config.taps)
    assert model.encode(tall)[0].shape[1] == 3
