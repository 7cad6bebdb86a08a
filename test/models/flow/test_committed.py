"""Training-time real-time chunking: committed actions are input at time 0, and come back untouched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from builders import make_checkpoint, make_config, make_model
from closeness import assert_near
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.checkpoints.formats import Contents, trained_delay
from vla_accel_ros.models.flow.committed import Committed
from vla_accel_ros.models.flow.sampling import sample
from vla_accel_ros.models.layers.gemma import KV, PerToken, RMSNorm
from vla_accel_ros.models.pi.model import Pi

pytestmark = pytest.mark.usefixtures("without_gradients")

KINDS = ("pi0", "pi05")
STEPS = 4


class Field:
    """The flow of a random network, for a batch of two."""

    def __init__(self, kind: str, device: str = "cpu", seed: int = 0) -> None:
        g = torch.Generator().manual_seed(seed)
        self.model: Pi = make_model(make_config(kind), seed).to(device)
        config = self.model.config
        self.noise = torch.randn(2, config.horizon, config.action_dim, generator=g).to(device)
        self.state = torch.randn(2, config.state_dim, generator=g).to(device)
        self.other = torch.randn(2, config.horizon, config.action_dim, generator=g).to(device)
        embs = torch.randn(2, 5, config.prefix.width, generator=g).to(device)
        self.kv: KV = self.model.prefix(embs)[1]

    def at(self, x: Tensor, t: Tensor) -> Tensor:
        return self.model.velocity(x, t, self.state, self.kv)

    def __call__(self, x: Tensor, t: float) -> Tensor:
        return self.at(x, torch.full((len(x),), t, device=x.device))


@pytest.mark.parametrize("t", [0.0, 0.3, 1.0])
def test_one_time_for_all_is_the_same_time_for_each(kind: str, t: float, device: str) -> None:
    field = Field(kind, device)
    each = torch.full(field.noise.shape[:2], t)
    assert torch.equal(field.at(field.noise, each), field(field.noise, t))
    assert torch.equal(field.at(field.noise, each.to(device)), field(field.noise, t))


def test_samples_of_a_batch_may_have_their_own_times(kind: str, device: str) -> None:
    field = Field(kind, device)
    times = torch.rand(field.noise.shape[:2], generator=torch.Generator().manual_seed(1)).to(device)
    together = field.at(field.noise, times)
    for row in range(2):
        kv = KV(field.kv.k[:, row : row + 1], field.kv.v[:, row : row + 1])
        part = slice(row, row + 1)
        alone = field.model.velocity(field.noise[part], times[part], field.state[part], kv)
        assert_near(together[part], alone)


def test_a_norm_modulates_each_token_by_its_own_condition(device: str) -> None:
    g = torch.Generator().manual_seed(0)
    norm = RMSNorm(6, modulated=True)
    torch.nn.init.normal_(norm.dense.weight, generator=g)
    torch.nn.init.normal_(norm.dense.bias, generator=g)
    norm = norm.to(device)
    x, first, second = (torch.randn(*shape, generator=g).to(device) for shape in ((2, 3, 6), (2, 6), (2, 6)))
    place = torch.tensor([1, 0, 1], device=device)
    normed, gate = norm(x, PerToken((first, second), place))
    for token, condition in enumerate((second, first, second)):
        alone, alone_gate = norm(x[:, token : token + 1], condition)
        assert torch.equal(normed[:, token : token + 1], alone)
        assert torch.equal(gate[:, token : token + 1], alone_gate)


@settings(deadline=None, max_examples=30)
@given(
    kind=st.sampled_from(KINDS),
    delay=st.integers(0, 7),
    seed=st.integers(0, 9),
    steps=st.integers(1, 4),
    scale=st.sampled_from((1e-30, 1.0, 1e6)),
    rule=st.sampled_from(("openpi", "lerobot")),
)
def test_committed_actions_come_back_exactly_and_matter(
    kind: str, delay: int, seed: int, steps: int, scale: float, rule: str
) -> None:
    field = Field(kind, seed=seed)
    actions = field.other[:, :delay] * scale
    held = Committed(actions)
    flow = sample(held.hold(field.at), held.begin(field.noise), steps, rule)
    assert torch.equal(flow.actions[:, :delay], actions)
    assert (flow.update[:, :delay] == 0).all()
    assert torch.isfinite(flow.actions).all()
    free = sample(field, field.noise, steps, rule)
    assert torch.equal(flow.actions[:, delay:], free.actions[:, delay:]) == (delay == 0)


def test_the_network_sees_them_clean_at_time_zero(kind: str, device: str) -> None:
    """By hand: every step sees the committed actions at time 0, and the others at the step's time."""
    field, seen = Field(kind, device), []
    held = Committed(field.other[:, :3])

    def watched(x: Tensor, t: Tensor) -> Tensor:
        seen.append((x.clone(), t))
        return field.at(x, t)

    sample(held.hold(watched), held.begin(field.noise), STEPS, "lerobot")
    for step, (x, t) in enumerate(seen):
        assert torch.equal(x[:, :3], field.other[:, :3])
        assert t.shape == x.shape[:2]
        assert t[:, :3].tolist() == [[0.0] * 3] * 2
        assert t[:, 3:].flatten().tolist() == pytest.approx([1 - step / STEPS] * 10)
    assert torch.equal(seen[0][0][:, 3:], field.noise[:, 3:])


def test_one_committed_chunk_serves_a_batch() -> None:
    noise = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
    actions = torch.ones(2, 3)
    begun = Committed(actions).begin(noise)
    assert torch.equal(begun[:, :2], actions.expand(2, 2, 3))
    assert torch.equal(begun[:, 2:], noise[:, 2:])


@pytest.mark.parametrize("shape", [(4, 3), (1, 2), (3, 1, 3)])
def test_actions_that_do_not_fit_the_chunk_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"committed\.actions has shape .*"):
        Committed(torch.zeros(shape)).begin(torch.zeros(2, 4, 3))


def test_actions_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match=r"committed\.actions has shape \[3\]"):
        Committed(torch.zeros(3))
    with pytest.raises(ValueError, match=r"committed\.actions must be finite"):
        Committed(torch.full((1, 3), float("nan")))


def test_a_policy_knows_what_its_checkpoint_says_of_its_training(kind: str, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, make_config(kind))
    assert load_policy(folder).trained_delay == 0
    data = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**data, "rtc_training_max_delay": 5}))
    assert load_policy(folder).trained_delay == 5
    (folder / "config.json").write_text(json.dumps({**data, "rtc_training_max_delay": 9}))
    with pytest.raises(ValueError, match=r"config\.json: rtc_training_max_delay is 9"):
        load_policy(folder)


def test_what_a_checkpoint_can_say_of_its_training() -> None:
    assert trained_delay(Contents(Path("policy")), 8) == 0
    assert trained_delay(Contents(Path("policy"), {"rtc_training_max_delay": 7}), 8) == 7
    for value in (-1, 8, 2.0, True, "3", None):
        with pytest.raises(ValueError, match=r"rtc_training_max_delay .* 8"):
            trained_delay(Contents(Path("policy"), {"rtc_training_max_delay": value}), 8)
