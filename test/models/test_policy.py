"""From an observation to what the network takes, and from its actions to joint targets."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from builders import CAMERAS, JOINTS, make_observation, make_policy
from hypothesis import given
from hypothesis import strategies as st

from vla_accel_ros.models.network_policy import state_origin
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.models.processing.conventions import Normalizer

PI0, PI05 = make_policy("pi0"), make_policy("pi05")
MASK = np.array([True, True, True, True, True, False])
RELATIVE = make_policy("pi05", delta_mask=MASK)


def words(policy: Policy, tokens: torch.Tensor) -> str:
    return policy.tokenizer.decode(tokens.tolist())


def test_prompt_of_pi0_ends_with_a_line_break_of_its_own() -> None:
    tokens = PI0.inputs(make_observation(instruction="reach_the red block\n")).tokens
    text = PI0.tokenizer.encode("reach the red block", bos=True)
    assert tokens.tolist() == [*text, *PI0.tokenizer.encode("\n")]
    assert tokens.dtype == torch.int64


def test_prompt_of_pi05_tells_the_state_in_bins() -> None:
    observation = make_observation()
    normal = PI05.state_normalizer.normalize(observation.state.astype(np.float64))
    bins = [int((value + 1) // (2 / 256)) for value in normal]
    expected = f"Task: reach the red block, State: {' '.join(map(str, bins))};\nAction: "
    assert PI05.inputs(observation).tokens.tolist() == PI05.tokenizer.encode(expected, bos=True)


def test_prompt_of_pi05_as_lerobot_and_as_libero() -> None:
    observation = make_observation()
    padded = dataclasses.replace(PI05, prompt_state="padded").inputs(observation)
    assert "128 128 ;" in words(PI05, padded.tokens)  # state_dim 8, six joints
    without = dataclasses.replace(PI05, prompt_state="none").inputs(observation)
    assert without.tokens.tolist() == PI0.inputs(observation).tokens.tolist()


def test_images_come_in_prefix_order_and_absent_ones_do_not_come() -> None:
    observation = make_observation()
    backwards = dataclasses.replace(observation, images=dict(reversed([*observation.images.items()])))
    inputs = PI05.inputs(backwards)
    assert inputs.image_names == CAMERAS
    for name, image in zip(CAMERAS, inputs.images, strict=True):
        pixels = torch.from_numpy(observation.images[name]).permute(2, 0, 1).float()
        torch.testing.assert_close(image, pixels / 255 * 2 - 1)
    only = PI05.inputs(make_observation(cameras=CAMERAS[1:]))
    assert only.image_names == CAMERAS[1:]
    assert only.images.shape == (1, 3, 28, 28)


def test_state_is_normalised_then_padded() -> None:
    observation = make_observation()
    state = PI0.inputs(observation).state
    expected = PI0.state_normalizer.normalize(observation.state.astype(np.float64))
    np.testing.assert_allclose(state[:JOINTS], expected, atol=1e-6)
    assert state[JOINTS:].tolist() == [0.0, 0.0]


def test_relative_actions_start_from_the_observations_own_state() -> None:
    """The state is added as the robot gave it, after unnormalising; absolute joints get nothing."""
    state = make_observation().state
    raw = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    absolute = RELATIVE.action_normalizer.unnormalize(raw.double().numpy()[:, :JOINTS])
    targets = RELATIVE.actions(raw, state)
    assert targets.dtype == np.float32
    np.testing.assert_allclose(targets, absolute + np.where(MASK, state, 0), atol=1e-6)


@given(seed=st.integers(0, 1000))
def test_actions_come_back(seed: int) -> None:
    rng = np.random.default_rng(seed)
    targets, state = (
        rng.normal(size=(4, JOINTS)).astype(np.float32),
        rng.normal(size=JOINTS).astype(np.float32),
    )
    for policy in (PI0, PI05, RELATIVE):
        raw = policy.raw_actions(targets, state)
        assert (raw[:, JOINTS:] == 0).all()
        np.testing.assert_allclose(policy.actions(raw, state), targets, atol=1e-5)


@pytest.mark.parametrize("policy", [PI0, PI05])
@pytest.mark.parametrize("spread", [0.0, 1e-7])
def test_a_joint_that_rested_in_training_guides_a_chunk_as_it_was_then(policy: Policy, spread: float) -> None:
    """Relative to joints measured a little beside it, it would be thousands of deviations from training."""
    low, high = np.full(JOINTS, -1.0), np.ones(JOINTS)
    low[2], high[2] = 0.0, spread
    made = Normalizer.mean_std(low, high - low) if policy is PI0 else Normalizer.quantile(low, high)
    relative = dataclasses.replace(policy, action_normalizer=made, delta_mask=np.ones(JOINTS, np.bool_))
    state = np.zeros(JOINTS, np.float32)
    state[2] = 1e-3
    rests = relative.raw_actions(np.zeros((4, JOINTS), np.float32), state)[:, 2]
    assert rests.tolist() == [0.0 if policy is PI0 else -1.0] * 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": {}}, r"observation\.images is empty; give at least one of"),
        (
            {"images": {"top": np.zeros((2, 2, 3), np.uint8)}},
            r"observation\.images has \['top'\]; the policy knows",
        ),
        ({"images": {CAMERAS[0]: np.zeros((28, 28, 3))}}, r"images\['base_0_rgb'\] is float64 \[28, 28, 3\]"),
        (
            {"images": {CAMERAS[0]: np.zeros((28, 28), np.uint8)}},
            r"is uint8 \[28, 28\]; give uint8 \[H, W, 3\]",
        ),
        ({"images": {CAMERAS[0]: np.zeros((0, 28, 3), np.uint8)}}, r"is uint8 \[0, 28, 3\]"),
        ({"state": np.zeros(7, np.float32)}, r"observation\.state has shape \[7\]; the policy takes 1 to 6"),
        ({"state": np.zeros((1, 6), np.float32)}, r"observation\.state has shape \[1, 6\]"),
        ({"state": np.array([0, 0, np.nan, 0, 0, 0], np.float32)}, r"observation\.state\[2\] is nan"),
        ({"instruction": "red " * 40}, r"has 56 tokens; the policy takes 32"),
        ({"instruction": "red " * 10_000}, r"has 39999 characters; the policy takes 32 tokens"),
        ({"instruction": "pick \udcff up"}, r"has '\\udcff' as character 5, which is no Unicode text"),
        ({"instruction": b"pick"}, r"observation\.instruction is of type bytes; give a string"),
        ({"images": {CAMERAS[0]: None}}, r"images\['base_0_rgb'\] is of type NoneType; give uint8"),
        (
            {"images": {CAMERAS[0]: np.broadcast_to(np.zeros(3, np.uint8), (1 << 20, 1 << 20, 3))}},
            r"has 1048576 x 1048576 pixels; at most 67108864",
        ),
        ({"state": np.full(6, 3e38, np.float32)}, r"observation\.state\[\d\] is 3.*exceeds float32"),
        ({"state": np.array(["0"] * 6)}, r"observation\.state is an array of <U1; give float32 \[D\]"),
        ({"state": [0.0] * 6}, r"observation\.state is of type list; give float32 \[D\]"),
    ],
)
def test_what_the_policy_cannot_take_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PI05.inputs(dataclasses.replace(make_observation(), **changes))  # type: ignore[arg-type]


def test_relative_actions_need_their_joints() -> None:
    with pytest.raises(ValueError, match="makes action 4 relative"):
        RELATIVE.actions(torch.zeros(8, 8), np.zeros(4, np.float32))


def test_actions_are_relative_to_the_state_where_the_mask_says_so() -> None:
    mask, state = np.array([True, False, True]), np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    expected = [float(state[0]), 0.0, float(state[2])]
    assert state_origin(mask, state).tolist() == expected  # of a state with more values, and of as many
    assert state_origin(mask, state[:3]).tolist() == expected
    assert state_origin(mask & [True, True, False], state[:1]).tolist() == [expected[0], 0.0, 0.0]
    with pytest.raises(ValueError, match="action 2 relative"):
        state_origin(mask, state[:2])
