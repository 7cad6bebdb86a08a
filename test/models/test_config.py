"""Sizes refuse what cannot be built, and survive their JSON form."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from builders import make_config

from vla_accel_ros.models.config import PI0, PI05, GemmaConfig, LlamaConfig, PiConfig, VisionConfig


def test_longest_prefix() -> None:
    assert PI0.max_tokens == 3 * 256 + 48
    assert PI05.max_tokens == 3 * 256 + 200


def test_json_names_missing_and_unknown_fields() -> None:
    data = make_config().to_json()
    data["vision"]["colour"] = data["vision"].pop("width")
    with pytest.raises(ValueError, match=r"config\.vision .* missing \['width'\], unknown \['colour'\]"):
        PiConfig.from_json(data)
    with pytest.raises(ValueError, match=r"^config must"):
        PiConfig.from_json([])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "pi1"}, "kind is 'pi1'"),
        ({"horizon": 0}, r"config\.horizon is 0"),
        ({"vocab": 1.5}, r"config\.vocab is 1\.5"),
        ({"image_names": ("a", "a")}, "image_names"),
        ({"image_names": ()}, "image_names"),
    ],
)
def test_policy_sizes_are_checked(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_config(**changes)


@pytest.mark.parametrize("names", ["abc", [1, 2], None, [""]])
def test_cameras_in_json_are_a_list_of_names(names: object) -> None:
    data = {**make_config().to_json(), "image_names": names}
    with pytest.raises(ValueError, match=r"config\.image_names is .*"):
        PiConfig.from_json(data)


def test_the_expert_must_fit_the_prefix() -> None:
    prefix = make_config().prefix
    with pytest.raises(ValueError, match=r"prefix\.depth 2 differs from expert\.depth 3"):
        make_config(expert=dataclasses.replace(prefix, depth=3))
    with pytest.raises(ValueError, match=r"prefix\.head_dim 8 differs from expert\.head_dim 4"):
        make_config(expert=dataclasses.replace(prefix, head_dim=4))


def test_parts_are_checked() -> None:
    with pytest.raises(ValueError, match=r"vision\.image_size 30"):
        VisionConfig(width=8, depth=1, mlp=8, heads=2, image_size=30, patch=14)
    with pytest.raises(ValueError, match=r"vision\.width 9"):
        VisionConfig(width=9, depth=1, mlp=8, heads=2, image_size=28, patch=14)
    with pytest.raises(ValueError, match=r"gemma\.heads 3"):
        GemmaConfig(width=8, depth=1, mlp=8, heads=3, kv_heads=2, head_dim=4)
    with pytest.raises(ValueError, match=r"gemma\.head_dim 5"):
        GemmaConfig(width=8, depth=1, mlp=8, heads=2, kv_heads=1, head_dim=5)


@pytest.mark.parametrize("epsilon", [None, "1e-6", 0.0, 1.0, float("nan"), True])
def test_an_epsilon_that_is_none_is_refused(epsilon: Any) -> None:
    with pytest.raises(ValueError, match=r"llama\.norm_eps is"):
        LlamaConfig(8, 1, 8, 1, 1, 8, epsilon)
