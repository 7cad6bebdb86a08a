"""OpenVLA's pieces fit together: computed in parts, in batches or packed, the numbers are the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from closeness import assert_near
from openvla_builders import make_openvla, make_openvla_config
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


def test_the_towers_have_their_own_channels(model: OpenVLA) -> None:
    features = model.vision_backbone(pixels(1))
    changed = pixels(1)
    changed[:, 3:] += 1
    moved = (model.vision_backbone(changed) != features).any(dim=1)[0]
    assert moved.tolist() == [False] * model.config.dino.width + [True] * model.config.siglip.width


def test_the_image_comes_after_the_first_token(model: OpenVLA) -> None:
    images, tokens = embeddings(model, 2, 4), torch.tensor([[1, 5, 7], [1, 8, 9]])
    joint = model.embed(images, tokens)
    words = model.embed_tokens(tokens)
    assert torch.equal(joint[:, 0], words[:, 0])
    assert torch.equal(joint[:, 1:5], images)
    assert torch.equal(joint[:, 5:], words[:, 1:])


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


def test_a_prefix_is_causal(model: OpenVLA) -> None:
    embs = embeddings(model, 1, 8)
    changed = embs.clone()
    changed[:, 5:] += 1
    same(model.prefix(changed)[0][:, :5], model.prefix(embs)[0][:, :5])


def test_prompts_padded_at_their_ends_are_computed_as_alone(model: OpenVLA) -> None:
    embs = embeddings(model, 3, 7)
    hidden, kv = model.prefix(embs)
    for row, length in enumerate((7, 4, 6)):
        alone, alone_kv = model.prefix(embs[row : row + 1, :length])
        same(hidden[row, :length], alone[0])
        same(kv.k[:, row, :, :length], alone_kv.k[:, 0])


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


def test_decodes_of_older_frames_ride_in_the_prefix_of_a_new_one(model: OpenVLA) -> None:
    """One forward over [new frame | a token of frame 1 | a token of frame 2], masked and placed by hand."""
    frames = [embeddings(model, 1, tokens, seed) for seed, tokens in enumerate((5, 6, 4))]
    words = [embeddings(model, 1, 1, seed) for seed in (7, 8)]
    pasts = [model.prefix(frame)[1] for frame in frames[1:]]
    attend = torch.zeros(1, 7, 10 + 7, dtype=torch.bool)  # columns: frame 1, frame 2, the seven tokens
    attend[0, :5, 10:15] = torch.ones(5, 5, dtype=torch.bool).tril()
    attend[0, 5, :6] = attend[0, 5, 15] = True
    attend[0, 6, 6:10] = attend[0, 6, 16] = True
    positions = torch.tensor([[0, 1, 2, 3, 4, 6, 4]])
    packed, keys, values = model.language_model.model(
        torch.cat((frames[0], *words), dim=1), positions, attend, pasts
    )
    hidden, kv = model.prefix(frames[0])
    same(packed[:, :5], hidden)
    same(torch.stack(keys)[:, :, :, :5], kv.k)
    same(torch.stack(values)[:, :, :, :5], kv.v)
    for row, (word, past) in enumerate(zip(words, pasts, strict=True), start=5):
        same(packed[:, row : row + 1], model.extend(word, past)[0])


def test_every_parameter_has_a_gradient(model: OpenVLA) -> None:
    tokens = torch.tensor([[1, 5, 7, 9]])
    embs = model.embed(model.encode(pixels(1)), tokens)
    model.logits(model.prefix(embs)[0]).logsumexp(dim=-1).sum().backward()
    still = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 0]
    model.zero_grad(set_to_none=True)
    assert not still


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


def test_the_last_block_of_a_tower_is_not_built(model: OpenVLA) -> None:
    config = make_openvla_config()
    assert len(model.vision_backbone.featurizer.blocks) == config.dino.depth - 1
    assert len(model.vision_backbone.fused_featurizer.blocks) == config.siglip.depth - 1
