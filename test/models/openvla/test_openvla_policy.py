"""OpenVLA's sizes, pixels, prompt, action tokens and statistics: by hand, against Pillow, and refused in one
sentence; what its policy takes, and what it gives back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from openvla_builders import (
    ACTIONS,
    CAMERA,
    SPACE,
    WORD_IDS,
    make_llama_tokenizer,
    make_openvla_config,
    make_openvla_folder,
    make_openvla_observation,
    make_published_config,
)
from PIL import Image

from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.config import LlamaConfig, VisionConfig
from vla_accel_ros.models.openvla.config import OPENVLA_7B, SPACE_TOKEN, OpenVLAConfig
from vla_accel_ros.models.openvla.model import OpenVLA, is_unused
from vla_accel_ros.models.openvla.policy import (
    ActionStats,
    ActionTokens,
    OpenVLAPolicy,
    openvla_prompt,
)
from vla_accel_ros.models.openvla.sizes import infer_openvla
from vla_accel_ros.types import Observation

NO_STATE = np.zeros(0)


def load(folder: Path) -> OpenVLAPolicy:
    policy = load_policy(folder)
    assert isinstance(policy, OpenVLAPolicy)
    return policy


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> OpenVLAPolicy:
    return load(make_openvla_folder(tmp_path_factory.mktemp("openvla")))


def words(tokens: list[int]) -> list[str | None]:
    tokenizer = make_llama_tokenizer()
    return [tokenizer.id_to_token(token) for token in tokens]


def refused(policy: OpenVLAPolicy, observation: Observation, *parts: str) -> None:
    with pytest.raises(ValueError) as caught:
        policy.inputs(observation)
    for part in parts:
        assert part in str(caught.value)


def test_the_prompt_ends_with_the_space_token(policy: OpenVLAPolicy) -> None:
    tokens = policy.prompt("Lift the RED cup")
    asked = "<s> In : What action should the robot take to lift the red cup ? \n Out :"
    assert words(tokens[:-1]) == asked.split(" ")
    assert tokens[-1] == SPACE


def test_the_space_token_of_the_published_model(tmp_path_factory: pytest.TempPathFactory) -> None:
    config = make_openvla_config(vocab=32064, action_vocab=32000, bins=256, space_token=SPACE_TOKEN)
    policy = load(make_openvla_folder(tmp_path_factory.mktemp("openvla"), config))
    assert policy.prompt("lift")[-1] == 29871
    assert policy.action_tokens.to_values(np.array([31999])) == -1 + 1 / 255


def test_the_space_token_is_appended_if_it_is_not_there(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Not where the prompt ends with it already, and not where the vocabulary has none."""
    colon = make_llama_tokenizer().token_to_id(":")
    for space in (colon, None):
        config = make_openvla_config(space_token=space)
        policy = load(make_openvla_folder(tmp_path_factory.mktemp("openvla"), config))
        assert words(policy.prompt("lift"))[-3:] == ["\n", "Out", ":"]


def test_inputs(policy: OpenVLAPolicy) -> None:
    observation = make_openvla_observation()
    inputs = policy.inputs(observation)
    assert inputs.image_names == (CAMERA,)
    assert inputs.tokens.tolist() == policy.prompt(observation.instruction)
    assert inputs.state.shape == (0,)
    squeezed = Image.fromarray(observation.images[CAMERA]).resize((28, 28), Image.Resampling.BICUBIC)
    unit = torch.from_numpy(np.array(squeezed)).permute(2, 0, 1) / 255.0
    mean, std = [0.484375, 0.455078125, 0.40625], [0.228515625, 0.2236328125, 0.224609375]
    dino = (unit - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    torch.testing.assert_close(inputs.images, torch.cat((dino, unit * 2 - 1))[None])


def test_wrong_observations_are_refused(policy: OpenVLAPolicy) -> None:
    good = make_openvla_observation()
    image = good.images[CAMERA]

    def seen(**images: np.ndarray) -> Observation:
        return Observation(images, good.state, good.instruction, 0)

    refused(policy, seen(), "observation.images has []", "takes one image")
    refused(policy, seen(**{CAMERA: image, "wrist": image}), f"['{CAMERA}', 'wrist']")
    refused(policy, seen(**{CAMERA: image.astype(np.float32)}), f"observation.images['{CAMERA}'] is float32")
    refused(policy, seen(**{CAMERA: image[:0]}), "[0, 64, 3]")
    refused(policy, seen(**{CAMERA: image[..., :1]}), "[48, 64, 1]")
    refused(policy, make_openvla_observation(instruction="lift " * 40), "the policy takes 32", "shorten")


@given(st.lists(st.integers(WORD_IDS + 1, WORD_IDS + 15), min_size=ACTIONS, max_size=ACTIONS))
def test_action_tokens_come_back(policy: OpenVLAPolicy, tokens: list[int]) -> None:
    ids = torch.tensor([tokens])
    assert torch.equal(policy.raw_actions(policy.actions(ids, NO_STATE), NO_STATE), ids)


Shapes = dict[str, tuple[int, ...]]


def published_shapes() -> Shapes:
    """Every tensor of openvla-7b."""
    data = json.loads((Path(__file__).parents[2] / "data" / "openvla_parameters.json").read_text())
    return {
        name.replace("*", str(index)): tuple(shape)
        for name, (count, shape) in data.items()
        for index in range(count)
    }


def small_llama_shapes(llama: LlamaConfig, vocab: int) -> Shapes:
    """The published towers with a small language model."""
    small = make_openvla_config(
        prefix=llama, vocab=vocab, action_vocab=vocab - 64, bins=256, space_token=None
    )
    with torch.device("meta"):
        language = OpenVLA(small).language_model.state_dict()
    towers = {name: shape for name, shape in published_shapes().items() if name.startswith("vision_backbone")}
    return towers | {f"language_model.{name}": tuple(tensor.shape) for name, tensor in language.items()}


def test_the_published_model_has_these_parameters() -> None:
    with torch.device("meta"):
        ours = {name: tuple(p.shape) for name, p in OpenVLA(OPENVLA_7B).named_parameters()}
    published = published_shapes()
    assert ours == {name: shape for name, shape in published.items() if not is_unused(name, OPENVLA_7B)}
    unused = {name for name in published if is_unused(name, OPENVLA_7B)}
    assert {name.split(".blocks.")[1].split(".")[0] for name in unused if ".blocks." in name} == {"23", "26"}


def test_published_folders_are_inferred_as_the_preset() -> None:
    """Their config.json leaves Llama's sizes to Hugging Face's defaults."""
    assert infer_openvla(published_shapes(), make_published_config()) == OPENVLA_7B
    assert infer_openvla(published_shapes(), {}) == OPENVLA_7B


def test_a_file_that_lost_its_last_layers_is_not_a_smaller_model() -> None:
    shapes = {name: shape for name, shape in published_shapes().items() if ".layers.31." not in name}
    assert infer_openvla(shapes, make_published_config()) == OPENVLA_7B


def test_written_sizes_count_before_the_shapes() -> None:
    llama = LlamaConfig(width=32, depth=3, mlp=48, heads=4, kv_heads=2, head_dim=8, norm_eps=1e-5)
    shapes = small_llama_shapes(llama, vocab=1064)
    config = infer_openvla(shapes, make_published_config(llama))
    assert config.prefix == llama
    assert (config.vocab, config.action_vocab, config.space_token) == (1064, 1000, None)
    assert (config.dino, config.siglip) == (OPENVLA_7B.dino, OPENVLA_7B.siglip)
    data = make_published_config(llama)
    data["text_config"] |= {"num_hidden_layers": 5, "vocab_size": 40064}
    config = infer_openvla(shapes, data)
    assert (config.prefix.depth, config.vocab, config.space_token) == (5, 40064, SPACE_TOKEN)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("image_resize_strategy", "letterbox"),
        ("use_fused_vision_backbone", False),
        ("arch_specifier", "no-align+gelu-mlp"),
        ("llm_backbone_id", "vicuna-v15-7b"),
        ("timm_override_act_layers", [None, "quick_gelu"]),
        ("pad_to_multiple_of", "64"),
        ("n_action_bins", 0),
        ("image_sizes", [224, 384]),
        ("text_config", "llama"),
        ("text_config.model_type", "mistral"),
        ("text_config.rope_theta", 500000.0),
        ("text_config.rope_scaling", {"type": "linear", "factor": 2.0}),
        ("text_config.hidden_act", "gelu"),
        ("text_config.rms_norm_eps", 0),
        ("text_config.num_hidden_layers", -1),
        ("text_config.num_attention_heads", True),
    ],
)
def test_other_networks_are_refused(field: str, value: Any) -> None:
    data = make_published_config()
    inner = data["text_config"] if field.startswith("text_config.") else data
    inner[field.rpartition(".")[2]] = value
    with pytest.raises(ValueError) as caught:
        infer_openvla(published_shapes(), data)
    word = "image_size" if field == "image_sizes" else field
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        ("vision_backbone.fused_featurizer.", "have no tensor vision_backbone.fused_featurizer.patch_embed"),
        ("language_model.", "have no tensor language_model.model.embed_tokens"),
    ],
)
def test_what_cannot_be_inferred_is_said(gone: str, message: str) -> None:
    shapes = {name: shape for name, shape in published_shapes().items() if not name.startswith(gone)}
    with pytest.raises(ValueError, match=message):
        infer_openvla(shapes, make_published_config())


def test_heads_are_in_no_shape() -> None:
    llama = LlamaConfig(width=32, depth=3, mlp=48, heads=4, kv_heads=2, head_dim=8)
    with pytest.raises(ValueError, match=r"text_config\.num_attention_heads is None"):
        infer_openvla(small_llama_shapes(llama, 1064), make_published_config())
    shapes = published_shapes()
    shapes["vision_backbone.featurizer.patch_embed.proj.weight"] = (48, 3, 14, 14)
    with pytest.raises(ValueError, match="width 48"):
        infer_openvla(shapes, make_published_config())


def test_json_fields_are_checked() -> None:
    data = make_openvla_config().to_json()
    with pytest.raises(ValueError, match=r"missing \['bins'\], unknown \['boxes'\]"):
        OpenVLAConfig.from_json({**{k: v for k, v in data.items() if k != "bins"}, "boxes": 1})
    with pytest.raises(ValueError, match=r"config\.prefix must"):
        OpenVLAConfig.from_json({**data, "prefix": 3})
    with pytest.raises(ValueError, match=r"^config must"):
        OpenVLAConfig.from_json([])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "pi0"}, "kind is 'pi0'"),
        (
            {"dino": VisionConfig(24, 3, 48, 4, 42, 14)},
            "dino.image_size 42 differs from siglip.image_size 28",
        ),
        ({"siglip": VisionConfig(20, 1, 36, 2, 28, 14)}, "siglip.depth is 1"),
        ({"registers": -1}, "config.registers is -1"),
        ({"registers": 1.5}, "config.registers is 1.5"),
        ({"registers": None}, "config.registers is None"),
        ({"vocab": float("inf")}, "config.vocab is inf"),
        ({"action_vocab": None}, "config.action_vocab is None"),
        ({"bins": True}, "config.bins is True"),
        ({"max_prompt": 0}, "config.max_prompt is 0"),
        ({"space_token": "a"}, "space_token is 'a'"),
        ({"space_token": 1.0}, "space_token is 1.0"),
        ({"image_names": ("a", "b")}, "exactly one name"),
        ({"bins": 99}, "bins 99"),
        ({"action_vocab": 65}, "action_vocab 65"),
        ({"space_token": 64}, "space_token is 64"),
    ],
)
def test_sizes_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_openvla_config(**changes)


PUBLISHED = ActionTokens(vocab=32000)
NUMBERS = arrays(np.float64, 7, elements=st.floats(-10, 10))


@st.composite
def stats(draw: st.DrawFn) -> ActionStats:
    low = draw(NUMBERS)
    spans = draw(arrays(np.float64, 7, elements=st.sampled_from([0.0, 0.01, 0.5, 3.0])))
    return ActionStats(low, low + spans, draw(arrays(np.bool_, 7)))


def test_the_prompt_word_for_word() -> None:
    asked = openvla_prompt("Pick up the Red block.")
    assert asked == "In: What action should the robot take to pick up the red block.?\nOut:"


def test_tokens_by_hand() -> None:
    """The last id is the lowest bin; an id of a word, of padding or past the bins is the nearest action."""
    tokens = np.array([31999, 31998, 31872, 31745, 31744, 0, 2, 32063])
    bins = np.array([0, 1, 127, 254, 254, 254, 254, 0])
    np.testing.assert_allclose(PUBLISHED.to_values(tokens), -1 + (2 * bins + 1) / 255, atol=1e-15)


@given(st.integers(4, 300), arrays(np.float64, 5, elements=st.floats(-1.5, 1.5)))
def test_a_value_comes_back_as_its_bins_centre(bins: int, values: np.ndarray) -> None:
    tokens = ActionTokens(1000, bins)
    back = tokens.to_values(tokens.from_values(values))
    assert np.abs(back - np.clip(values, -1, 1)).max() <= 1 / (bins - 1) + 1e-12


@given(st.integers(2, 300))
def test_an_action_token_comes_back_as_itself(bins: int) -> None:
    tokens = ActionTokens(1000, bins)
    ids = np.arange(1000 - bins + 1, 1000)
    assert tokens.from_values(tokens.to_values(ids)).tolist() == ids.tolist()


@given(stats(), arrays(np.float64, (3, 7), elements=st.floats(-2, 2)))
def test_normalised_actions_come_back(known: ActionStats, unit: np.ndarray) -> None:
    """Every one but those that never moved in training, whose one value is the centre of the range."""
    robot = known.unnormalize(unit)
    back = known.normalize(robot)
    fixed = known.mask & (known.high == known.low)
    assert np.abs(back - unit)[:, ~fixed].max(initial=0) <= 1e-11
    assert (back[:, fixed] == 0).all()
    assert np.abs(known.unnormalize(back) - robot).max() <= 1e-11


@given(stats())
def test_the_ends_are_the_quantiles_and_the_rest_is_not_touched(known: ActionStats) -> None:
    for end, robot in ((-1.0, known.low), (1.0, known.high)):
        ours = known.unnormalize(np.full(7, end))
        np.testing.assert_allclose(ours[known.mask], robot[known.mask], atol=1e-12)
        assert (ours[~known.mask] == end).all()
