"""The plan of an OpenVLA-OFT: parameters and floating point operations of the published network, computed by
hand from its architecture, and what its plain stages promise."""

from __future__ import annotations

import pytest

from vla_accel_ros.models.openvla_oft.config import OpenVLAOFTConfig
from vla_accel_ros.planning.device import load
from vla_accel_ros.planning.memory import kv_bytes
from vla_accel_ros.planning.networks import weight_parts
from vla_accel_ros.planning.operations import total_flops
from vla_accel_ros.planning.plan import make_plan
from vla_accel_ros.planning.sizes import MODELS
from vla_accel_ros.planning.stages import operations
from vla_accel_ros.planning.work import Work, check_work

LIBERO, ALOHA = MODELS["openvla_oft"], MODELS["openvla_oft_aloha"]


def test_the_published_network_has_its_parameters() -> None:
    """Two towers without their last block, projector, stack and embeddings, state and head, in millions."""
    parts = 290 + 395 + 71 + 6476 + 32064 * 4096 / 1e6 + 17 + 151
    assert weight_parts(LIBERO)["all"] / 2e6 == pytest.approx(parts, rel=0.002)


def test_the_published_network_for_aloha_has_two_matrices_more_in_each_block() -> None:
    """The head is of 14 numbers, and 23 and 26 blocks are modulated, of widths 1024 and 1152."""
    film = 2 * 4097 * (23 * 1024 + 26 * 1152)
    more = film + 4096 * 4096 * 7 + 2 * 4096 * 7 + 4097 * 7 + 6 * 4096
    parts = (weight_parts(sizes)["all"] / 2 for sizes in (ALOHA, LIBERO))
    assert next(parts) - next(parts) == more


@pytest.mark.parametrize(
    ("sizes", "views", "encode", "forward"),
    [
        (LIBERO, 1, 369 + 37, 4451),
        (LIBERO, 2, 737 + 73, 7892),
        (ALOHA, 3, 1106 + 110, 15517 - 32 * 4 * 1145**2 * 4096 / 1e9),
    ],
)
def test_stages_have_the_operations_of_the_architecture(
    sizes: OpenVLAOFTConfig, views: int, encode: float, forward: float
) -> None:
    """In GFLOP; plain attention is passes, whose arithmetic is not in the sum."""
    ops = operations(sizes, Work(views, 25))
    assert total_flops(ops["encode"]) / 1e9 == pytest.approx(encode, rel=0.01)
    assert total_flops(ops["forward"]) / 1e9 == pytest.approx(forward, rel=0.03)
    words = {"text_encode"} if sizes.film else set[str]()
    assert {name for name, each in ops.items() if each} == {"encode", "forward"} | words


def test_a_chunk_is_one_pass_and_robots_queue() -> None:
    device = load("h100")
    one, two = (make_plan(LIBERO, device, Work(2, batch=batch)) for batch in (1, 2))
    assert one.fits and one.action[0] == pytest.approx(two.action[0] / 2)
    assert one.action[0] > 5 * one.frame[0]
    assert kv_bytes(LIBERO, 1) == 2 * 256 * 4096 * 2, "only image tokens are kept"


@pytest.mark.parametrize("work", [Work(views=3), Work(prompt=129), Work(precision="int8")])
def test_what_it_cannot_have_is_refused(work: Work) -> None:
    with pytest.raises(ValueError, match="openvla_oft"):
        check_work(LIBERO, work)
