"""The plans of a Fast-WAM, GR00Ts, a mimic-video and an X-VLA: parameters and floating point operations of
published networks, computed by hand from their architecture, and what their plain stages promise."""

from __future__ import annotations

from functools import partial

import pytest

from vla_accel_ros.planning.device import load
from vla_accel_ros.planning.memory import kv_bytes
from vla_accel_ros.planning.networks import weight_parts
from vla_accel_ros.planning.operations import total_flops
from vla_accel_ros.planning.plan import make_plan
from vla_accel_ros.planning.sizes import MODELS
from vla_accel_ros.planning.stages import operations
from vla_accel_ros.planning.work import Work, check_work

VIDEO = 5000 - (163.7 - 18.9) - 0.6 - (3072 * (256 + 3072 + 6 * 3072) + 8 * 3072) / 1e6
"""Millions of a Fast-WAM's video, without its last layer's end, its head and what makes its modulations."""
near = partial(pytest.approx, rel=0.02)
PARAMETERS = {
    "fastwam": VIDEO + 1021 + 5681 + 51,  # the actions, the text encoder, a third of the VAE's encoder
    "groot_n1_7": 3140,
    "groot_n1_5": 2400,
    "xvla": 879,
}
OPERATIONS = [
    # Of words once an instruction, with their keys and values; of a frame, whose last video layer is keys and
    # values alone; of 10 steps.
    ("fastwam", Work(2, 128), near(163, rel=0.01), near((1005 - 150) * 29 / 30), near(10 * 55)),
    # Of the language model, mixer, and keys and values; of 4 steps.
    ("groot_n1_7", Work(1, 27, steps=4), near(175, rel=0.01), near(148 + 37 + 18, rel=0.01), near(4 * 70)),
    ("groot_n1_7", Work(2, 29, steps=4), near(350, rel=0.01), near(256 + 64 + 32, rel=0.01), near(4 * 70)),
    ("groot_n1_5", Work(1, 47, steps=4), near(220, rel=0.01), near(375 + 125 + 31, rel=0.01), near(4 * 42)),
    ("groot_n1_5", Work(2, 54, steps=4), near(440, rel=0.01), near(715 + 238 + 57, rel=0.01), near(4 * 43)),
    # Of 20 blocks and of the decoder's keys and values; the text has 20 rows instead of 512, which saves 1.6
    # TFLOP. Of ten steps.
    ("mimic_video", Work(5, 20), near(8260), near(107_000 + 3870 - 1600), near(430, rel=0.03)),
    # 162 a view, 35 of the prompt, and of 10 steps, of which the last block computes the actions' rows alone.
    ("xvla", Work(3, 20), near(3 * 162), near(35.1 + 0.45, rel=0.005), near(0.975 * 1746, rel=0.025)),
]
WORDS = {"fastwam": near(1192 + 151 + 50), "mimic_video": near(194)}
IMPOSSIBLE = {
    "fastwam": (Work(views=3), Work(prompt=129), Work(precision="fp8")),
    "groot_n1_7": (Work(views=4), Work(prompt=193), Work(precision="fp8")),
    "mimic_video": (Work(views=6), Work(prompt=513), Work(precision="fp8")),
    "xvla": (Work(views=4), Work(prompt=65), Work(precision="fp8")),
}


@pytest.mark.parametrize("kind", PARAMETERS)
def test_the_published_network_has_its_parameters(kind: str) -> None:
    assert weight_parts(MODELS[kind])["all"] / 2e6 == pytest.approx(PARAMETERS[kind], rel=0.002)


@pytest.mark.parametrize(("kind", "work", "encode", "prefill", "denoise"), OPERATIONS)
def test_stages_have_the_operations_of_the_architecture(
    kind: str, work: Work, encode: float, prefill: float, denoise: float
) -> None:
    """In GFLOP."""
    flops = {name: total_flops(ops) / 1e9 for name, ops in operations(MODELS[kind], work).items() if ops}
    assert flops.pop("text_encode", None) == WORDS.get(kind)
    assert flops == {"encode": encode, "prefill": prefill, "denoise": denoise}


@pytest.mark.parametrize(("kind", "views"), [("groot_n1_7", 1), ("mimic_video", 5), ("xvla", 2)])
def test_a_plan_fits_a_gpu_of_80_gb_and_robots_queue(kind: str, views: int) -> None:
    sizes = MODELS[kind]
    one, two = (make_plan(sizes, load("h100"), Work(views, steps=4, batch=batch)) for batch in (1, 2))
    assert one.fits and one.memory.weights == weight_parts(sizes)["all"]
    assert one.latency[1] < one.latency[2] < 1.5
    assert two.frame[0] == pytest.approx(2 * one.frame[0])
    assert two.action[0] == pytest.approx(2 * one.action[0])


def test_words_of_a_fastwam_are_no_part_of_a_frame() -> None:
    device, sizes = load("h100"), MODELS["fastwam"]
    few, many = (make_plan(sizes, device, Work(2, prompt)) for prompt in (8, 128))
    assert few.fits and few.frame == many.frame and few.action == many.action
    assert few.stages["text_encode"].flops < many.stages["text_encode"].flops / 5
    assert few.action[0] > 2.0 * 1.64e9 * 10 / 3.35e12, "the actions' weights are read in every step"


def test_keys_and_values_of_frames_and_words_of_a_fastwam_are_counted() -> None:
    """36 MB of a frame, 47 MB of an instruction in each transformer."""
    assert kv_bytes(MODELS["fastwam"], 1) == pytest.approx(36.1e6 + 0.4e6 + 45.6e6 + 47.2e6, rel=0.01)


@pytest.mark.parametrize("kind", IMPOSSIBLE)
def test_what_a_model_cannot_have_is_refused(kind: str) -> None:
    for work in IMPOSSIBLE[kind]:
        with pytest.raises(ValueError, match=kind):
            check_work(MODELS[kind], work)
