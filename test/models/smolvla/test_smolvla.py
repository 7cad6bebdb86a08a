"""The SmolVLA network against what lerobot computed with the same weights, and what sees what in it."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from closeness import assert_near
from smolvla_recording import CASES, SPEC, Case, make_smolvla, make_smolvla_config
from torch import Tensor

from vla_accel_ros.models.flow.rtc import Guidance
from vla_accel_ros.models.flow.sampling import flow_times, sample
from vla_accel_ros.models.layers.gemma import KV
from vla_accel_ros.models.smolvla.config import SMOLVLA, SmolVLAConfig
from vla_accel_ros.models.smolvla.model import SmolVLA

pytestmark = pytest.mark.usefixtures("without_gradients")

load = cache(make_smolvla)


@pytest.fixture
def model(device: str) -> SmolVLA:
    return load(device)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, device: str) -> Case:
    return Case(request.param, device)


def field(model: SmolVLA, kv: KV, mask: Tensor | None = None):
    return lambda x, t: model.velocity(x, torch.full((len(x),), t, device=x.device), None, kv, mask)


def test_sizes_are_read_off_the_recorded_folder() -> None:
    config = make_smolvla_config()
    assert (config.vision.image_size, config.vision.patch, config.shuffle) == (64, 8, 4)
    assert (config.prefix.heads, config.prefix.kv_heads) == (SPEC["text_heads"], SPEC["text_kv_heads"])
    assert (config.prefix.depth, config.self_every, config.expert.width) == (4, 2, 36)
    assert (config.horizon, config.action_dim, config.state_dim, config.max_prompt) == (8, 9, 10, 32)
    assert config.image_names == ("top", "wrist"), "an empty camera is none"
    assert SmolVLAConfig.from_json(config.to_json()) == config


def test_prefix(model: SmolVLA, case: Case) -> None:
    """The reference padded and masked; we leave out what is absent, with the same result."""
    embeddings = case.embeddings(model)
    assert_near(embeddings[0], case["prefix_embs"])
    hidden, kv = model.prefix(embeddings)
    assert_near(hidden[0], case["prefix_out"])
    assert_near(kv.k[:, 0].transpose(1, 2), case["prefix_k"])
    assert_near(kv.v[:, 0].transpose(1, 2), case["prefix_v"])


def test_velocity_at_every_recorded_state(model: SmolVLA, case: Case) -> None:
    _, kv = model.prefix(case.embeddings(model))
    velocity = field(model, kv)
    assert flow_times(SPEC["num_steps"], "lerobot") == pytest.approx(case["t"].tolist(), abs=1e-7)
    for x, t, v in zip(case["x_t"], case["t"], case["v_t"], strict=True):
        assert_near(velocity(x[None], float(t))[0], v)


def test_guided_actions(model: SmolVLA, case: Case) -> None:
    _, kv = model.prefix(case.embeddings(model))
    noise, rtc = case["noise"][None], SPEC["rtc"]
    guidance = Guidance(
        case["rtc_prev"], rtc["delay"], rtc["execution"], rtc["schedule"], max_weight=rtc["max_weight"]
    )
    velocity = guidance.guide(field(model, kv), noise)
    assert_near(sample(velocity, noise, SPEC["num_steps"], "lerobot").actions[0], case["rtc_actions"])


def test_a_padded_batch_gives_what_each_alone_gives(model: SmolVLA, device: str) -> None:
    cases = [Case(index, device) for index in CASES]
    alone = [case.embeddings(model)[0] for case in cases]
    longest = max(map(len, alone))
    embs = torch.full((2, longest, alone[0].shape[1]), 1e3, device=device)
    valid = torch.zeros(2, longest, dtype=torch.bool, device=device)
    for row, tokens in enumerate(alone):
        embs[row, : len(tokens)], valid[row, : len(tokens)] = tokens, True
    last = valid.sum(dim=1) - 1
    attend = valid[:, None] & valid[:, :, None]
    for row in range(2):
        attend[row, : last[row], last[row]] = False
    _, kv = model.prefix(embs, attend, valid.cumsum(dim=1) - 1)
    x = torch.stack([case["x_t"][2] for case in cases])
    together = model.velocity(x, torch.stack([case["t"][2] for case in cases]), None, kv, valid)
    assert_near(together, torch.stack([case["v_t"][2] for case in cases]))


def test_one_time_for_all_is_the_same_time_for_each(model: SmolVLA, device: str) -> None:
    case = Case(0, device)
    _, kv = model.prefix(case.embeddings(model))
    x = case["noise"][None]
    t = torch.full((1,), 0.3, device=device)
    each = t[:, None].expand(1, x.shape[1])
    assert torch.equal(model.velocity(x, t, None, kv), model.velocity(x, each, None, kv))


def test_keys_and_values_are_written_where_asked(model: SmolVLA, device: str) -> None:
    embs = Case(0, device).embeddings(model)
    _, kv = model.prefix(embs)
    place = KV(torch.full_like(kv.k, 7.0), torch.full_like(kv.v, 7.0))
    assert model.prefix(embs, out=place)[1] is place
    assert torch.equal(place.k, kv.k)
    assert torch.equal(place.v, kv.v)


def test_bfloat16_is_as_near_float32_as_lerobots_own(device: str, case: Case) -> None:
    half = load(device, torch.bfloat16)
    parts = ("state_proj", "action_in_proj", "action_out_proj", "action_time_mlp_in", "action_time_mlp_out")
    assert {name for name, p in half.named_parameters() if p.dtype == torch.float32} == {
        f"{part}.{name}" for part in parts for name in ("weight", "bias")
    }
    _, kv = half.prefix(case.embeddings(half))
    assert kv.k.dtype == torch.bfloat16
    actions = sample(field(half, kv), case["noise"][None], SPEC["num_steps"], "lerobot").actions[0]
    assert actions.dtype == torch.float32
    full, recorded = case["actions_normalized"], case["actions_normalized_bfloat16"]
    assert (actions - full).abs().max() <= 2 * (recorded - full).abs().max()
    assert (actions - recorded).abs().max() <= 2 * (recorded - full).abs().max()


def test_the_published_sizes() -> None:
    with torch.device("meta"):
        model = SmolVLA(SMOLVLA)
    count = sum(p.numel() for p in model.parameters())
    head = SMOLVLA.vocab * SMOLVLA.prefix.width
    assert count + head == 450_046_176, "what lerobot counts, with the head that no path reads"
    assert (SMOLVLA.image_tokens, SMOLVLA.max_tokens) == (64, 3 * 64 + 48 + 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "pi0"}, "kind is 'pi0'"),
        ({"self_every": 0}, "config.self_every is 0"),
        ({"shuffle": 3}, "shuffle 3 does not divide the 8 patches"),
        ({"image_names": ()}, "image_names"),
    ],
)
def test_sizes_that_cannot_be(changes: dict[str, object], message: str) -> None:
    data = {**make_smolvla_config().to_json(), **changes}
    with pytest.raises(ValueError, match=message):
        SmolVLAConfig.from_json(data)
