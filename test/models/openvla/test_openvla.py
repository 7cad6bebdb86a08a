"""OpenVLA's pieces fit together: computed in parts, in batches or packed, the numbers are the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from closeness import assert_near
from openvla_builders import make_openvla
from torch import Tensor

from vla_accel_ros.models.layers.gemma import KV
from vla_accel_ros.models.openvla.model import OpenVLA

UNITS = 16


@pytest.fixture(scope="module")
def model() -> OpenVLA:
    return make_openvla(seed=3)


@pytest.fixture(autouse=True)
def without_gradients(request: pytest.FixtureRequest) -> Iterator[None]:
    with torch.set_grad_enabled("gradient" in request.node.name):
        yield


def embeddings(model: OpenVLA, batch: int, tokens: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, tokens, model.config.prefix.width, generator=generator)


def pixels(batch: int, seed: int = 0) -> Tensor:
    return torch.randn(batch, 6, 28, 28, generator=torch.Generator().manual_seed(seed))


def same(ours: Tensor, other: Tensor) -> None:
    assert_near(ours, other, UNITS)


def joined(*kvs: KV) -> KV:
    return KV(*(torch.cat(part, dim=3) for part in zip(*kvs, strict=True)))


def test_an_images_tokens_do_not_depend_on_its_batch(model: OpenVLA) -> None:
    both = model.encode(pixels(2))
    assert both.shape == (2, model.config.dino.tokens, model.config.prefix.width)
    same(both[1:], model.encode(pixels(2)[1:]))


@pytest.mark.parametrize("cuts", [(9,), (4, 5), (1, 1, 7), (3, 2, 1, 1, 1, 1)])
def test_a_prefix_in_any_pieces_is_the_prefix(model: OpenVLA, cuts: tuple[int, ...]) -> None:
    embs = embeddings(model, 2, 9)
    whole, whole_kv = model.prefix(embs)
    first, *rest = embs.split(cuts, dim=1)
    hidden, past = model.prefix(first)
    outputs, tail = [hidden], None
    for piece in rest:
        hidden, new = model.extend(piece, past, tail=tail)
        tail = new if tail is None else joined(tail, new)
        outputs.append(hidden)
    same(torch.cat(outputs, dim=1), whole)
    kv = past if tail is None else joined(past, tail)
    same(kv.k, whole_kv.k)
    same(kv.v, whole_kv.v)


def test_keys_and_values_are_written_where_asked(model: OpenVLA) -> None:
    sizes = model.config.prefix
    room = KV(*(torch.zeros(sizes.depth, 1, sizes.kv_heads, 9, sizes.head_dim) for _ in range(2)))
    embs = embeddings(model, 1, 9)
    view = KV(room.k[:, :, :, :6], room.v[:, :, :, :6])
    _, kv = model.prefix(embs[:, :6], out=view)
    assert kv.k.data_ptr() == room.k.data_ptr()
    model.extend(embs[:, 6:], view, out=KV(room.k[:, :, :, 6:], room.v[:, :, :, 6:]))
    _, whole = model.prefix(embs)
    same(room.k, whole.k)
    same(room.v, whole.v)


def test_half_precision_is_near_and_scores_are_float32(model: OpenVLA) -> None:
    tokens = torch.tensor([[1, 5, 7, 9]])
    half = make_openvla(seed=3).to(torch.bfloat16)
    scores = []
    for network in (model, half):
        hidden, kv = network.prefix(network.embed(network.encode(pixels(1)), tokens))
        assert kv.k.dtype == hidden.dtype == network.language_model.lm_head.weight.dtype
        scores.append(network.logits(hidden))
        assert scores[-1].dtype == torch.float32
    assert (scores[0] - scores[1]).abs().max() <= 2**-5 * scores[0].abs().max()
