"""What a family declares is checked when it is declared, and what follows from it is derived."""

from __future__ import annotations

from typing import Any

import pytest
from builders import make_config, make_policy

from vla_accel_ros.models.micro_requests import Chain, Leaf, MicroRequest, micro_batches
from vla_accel_ros.models.openvla.config import OPENVLA_7B
from vla_accel_ros.models.policies import computed
from vla_accel_ros.models.smolvla.config import SMOLVLA

ENCODE = MicroRequest("encode", ("pixels",), (Leaf("seen", (4, 8)),))
PREFILL = MicroRequest("prefill", ("seen", "words"), (Leaf("rows", (9, 8)),))
DENOISE = MicroRequest("denoise", ("x", "t", "rows", "state"), (Leaf("actions"),), kept="step")


@pytest.mark.parametrize(
    ("chain", "acts", "decodes", "answers", "takes_state", "kept"),
    [
        (make_config("pi0").chain, "denoise", True, True, True, {"seen", "kv", "hidden"}),
        (make_config("pi05").chain, "denoise", True, True, False, {"seen", "kv", "hidden"}),
        (SMOLVLA.chain, "denoise", False, False, False, {"kv"}),
        (OPENVLA_7B.chain, "decode", True, False, False, {"seen", "kv", "hidden"}),
        (Chain((ENCODE, PREFILL, DENOISE)), "denoise", False, False, True, {"rows"}),
    ],
)
def test_a_chain_says_how_it_acts_and_what_is_kept_of_a_frame(
    chain: Chain, acts: str, decodes: bool, answers: bool, takes_state: bool, kept: set[str]
) -> None:
    assert (chain.acts, chain.decodes, chain.answers, chain.takes_state) == (
        acts,
        decodes,
        answers,
        takes_state,
    )
    assert chain.kept.keys() == kept


@pytest.mark.parametrize(
    ("micro_requests", "facts"),
    [
        ((MicroRequest("dream", (), ()), DENOISE), ["dream"]),
        ((ENCODE, ENCODE, PREFILL, DENOISE), ["encode"]),
        ((PREFILL, ENCODE, DENOISE), ["prefill", "seen"]),
        ((ENCODE, PREFILL), ["actions", "none"]),
        ((ENCODE, MicroRequest("prefill", ("seen",), (Leaf("actions"),))), ["actions", "prefill"]),
        ((MicroRequest("text_encode", ("pixels",), (), kept="instruction"),), ["text_encode", "pixels"]),
        ((ENCODE, MicroRequest("prefill", ("seen",), (Leaf("seen"),)), DENOISE), ["prefill", "seen"]),
        ((MicroRequest("forward", ("pixels",), (Leaf("actions"),), kept="chunk"),), ["pixels", "encode"]),
        ((MicroRequest("encode", ("pixels", "index"), ()), DENOISE), ["encode", "index"]),
        ((MicroRequest("encode", ("x",), ()), DENOISE), ["encode", "'x'"]),
        ((MicroRequest("encode", ("pixels",), (), kept="day"),), ["encode", "day"]),
    ],
)
def test_a_chain_that_cannot_be_computed_is_refused(
    micro_requests: tuple[MicroRequest, ...], facts: list[str]
) -> None:
    with pytest.raises(ValueError) as error:
        Chain(micro_requests)
    assert [fact for fact in facts if fact not in str(error.value)] == []


def test_what_cannot_be_captured_is_refused() -> None:
    tokens = MicroRequest("decode", ("rows",), (Leaf("actions"),), kept="step")
    assert Chain((ENCODE, PREFILL, DENOISE), capturable=True).capturable
    with pytest.raises(ValueError, match=r"capturable.*decode"):
        Chain((ENCODE, PREFILL, tokens), capturable=True)


def test_a_result_that_is_not_declared_is_refused() -> None:
    policy: Any = make_policy()
    micro = MicroRequest("encode", ("pixels",), (Leaf("features"),))
    pixels = policy.model.embed_table.new_zeros(1, 3, 28, 28)
    with pytest.raises(RuntimeError, match=r"pi05.*seen.*features"):
        computed(policy, micro, {"pixels": pixels})


def test_each_time_of_a_video_is_a_micro_batch_and_an_instructions_text_is_in_none() -> None:
    text = MicroRequest("text_encode", ("words",), (Leaf("text"),), kept="instruction")
    latents = MicroRequest("vae_encode", ("pixels",), (Leaf("latents"),))
    video = MicroRequest("video_denoise", ("latents", "index"), (Leaf("video"),), times=2)
    batches = [
        [(micro.stage, index) for micro, index in batch]
        for batch in micro_batches((text, ENCODE, latents, video, PREFILL))
    ]
    assert batches == [
        [("encode", 0), ("vae_encode", 0)],
        [("video_denoise", 0)],
        [("video_denoise", 1)],
        [("prefill", 0)],
    ]
