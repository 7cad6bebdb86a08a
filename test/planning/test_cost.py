"""Prices of operations on devices: device files, bounds, waves, corrections, and what they say of whole
engines."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from attentions import attention

from vla_accel_ros.kernels.block_shapes import chosen
from vla_accel_ros.kernels.shapes import INT8_GATED, INT8_PRODUCT
from vla_accel_ros.kernels.shapes import Shape as KernelShape
from vla_accel_ros.kernels.tuning import packaged_table
from vla_accel_ros.planning.cost import correction, price, total, waves_us
from vla_accel_ros.planning.device import (
    FOLDER,
    NUMBERS,
    OPTIONAL,
    SOURCES,
    Device,
    Number,
    Shape,
    load,
    named_like,
    names,
    read,
)
from vla_accel_ros.planning.operations import (
    GATED,
    PACKED,
    PLAIN,
    ROWS,
    SDPA,
    Kind,
    Op,
    of_rows,
    one_pass,
    product,
)
from vla_accel_ros.planning.rows import as_gpu, own_rate, rows_us, steps, tile

H200 = load("h200")
BARE = replace(H200, gemm=())


def test_no_product_beats_memory_or_what_large_products_keep_up() -> None:
    rate = BARE.rate("bf16") * BARE.value("sustained_share")
    for rows, columns, inner in ((1, 4096, 4096), (544, 32768, 2048), (77, 130, 999), (9000, 9000, 9000)):
        op = product("p", 3, rows, columns, inner)
        us = price(op, BARE).us / 3
        assert us > op.bytes / BARE.value("bandwidth_gb_s") / 1e3
        assert us > op.flops / rate * 1e6


def test_what_bounds_an_operation_is_said() -> None:
    assert price(product("p", 1, 8192, 8192, 8192), BARE).bound == "arithmetic"
    assert price(one_pass("p", 1, 100_000, 4096, 4096), BARE).bound == "memory"
    assert price(one_pass("p", 1, 1, 8, 8), BARE).bound == "start"
    assert price(attention("a", 1, 50, 10, 8, 1, 64), BARE).bound == "start"


def test_tiles_that_do_not_fill_a_wave_are_paid_for() -> None:
    one, more = (waves_us(128 * n, 256 * 132, 4096, 132, 9e14) for n in (1, 2))
    assert more == pytest.approx(2 * one)
    assert waves_us(129, 256 * 132, 4096, 132, 9e14) > 1.2 * one


def test_rows_of_a_narrow_product_come_in_64s() -> None:
    few, many = (price(product("p", 1, m, 2560, 1024, kind=Kind.NARROW), H200).us for m in (64, 65))
    assert many == pytest.approx(2 * few, rel=0.02)


def test_a_product_is_corrected_near_shapes_that_were_measured_and_nowhere_else() -> None:
    op = product("p", 1, 500, 4096, 4096)
    twice = 2 * price(op, BARE).us
    taught = replace(BARE, gemm=(Shape(500, 4096, 4096, "bf16", twice),))
    assert price(op, taught).us == pytest.approx(twice)
    near, far = product("p", 1, 600, 4096, 4096), product("p", 1, 5000, 4096, 4096)
    assert 1.0 < correction(near, taught) < 2.0
    assert correction(far, taught) == 1.0
    assert correction(product("p", 1, 500, 4096, 4096, "fp8"), taught) == 1.0


def test_a_device_like_another_has_its_corrections_and_its_own_memory() -> None:
    measured = next(shape for shape in H200.gemm if shape.m == 544)
    op = product("p", 1, measured.m, measured.n, measured.k)
    slower = load("h100")
    assert price(op, H200).us == pytest.approx(measured.us)
    assert correction(op, slower) == correction(op, H200) != 1.0
    assert correction(op, replace(slower, like=None)) == 1.0
    assert price(op, slower).us > price(op, H200).us


def test_an_operation_of_plain_torch_is_no_smallest_launch() -> None:
    ours, plain = (price(one_pass("p", 1, 4, 8, 8, by=by), BARE).us for by in ("", PLAIN))
    assert plain - ours == pytest.approx(BARE.value("plain_start_us") - BARE.value("pass_start_us"))


def rows_of(rows: int, columns: int, inner: int, name: str = "qkv") -> Op:
    return of_rows([product(name, 1, rows, columns, inner, "int8")])[0]


def test_rows_in_8_bits_are_priced_by_the_tiles_that_engines_launch() -> None:
    packaged, ampere = packaged_table(as_gpu(H200)), replace(H200, capability=80)
    for op, shape in (
        (rows_of(544, 2560, 2048), KernelShape(INT8_PRODUCT, 544, 2560, 2048, "int8")),
        (rows_of(50, 8192, 1024, name="gate and up"), KernelShape(INT8_GATED, 50, 4096, 1024, "int8")),
    ):
        assert shape.key in packaged.entries
        assert tile(op, H200) == packaged.pick(shape)
        assert tile(op, ampere) == chosen(shape, as_gpu(ampere))  # for which there is no table
        config = packaged.pick(shape)
        blocks = -(-shape.rows // config.block_m) * -(-shape.columns // config.block_n)
        chunks, _ = steps(op, H200)
        assert chunks == pytest.approx(max(1, blocks / H200.sms) * -(-shape.inner // config.block_k))


def test_blocks_of_rows_in_8_bits_share_processors_but_one_takes_what_it_takes() -> None:
    few, more = rows_of(1, 2048, 16384), rows_of(16, 2048, 16384)  # of one tile of rows
    assert rows_us(few, BARE) == pytest.approx(rows_us(more, BARE), rel=1e-3)
    untuned = replace(BARE, capability=80)
    twice, once = (steps(rows_of(512, columns, 1152), untuned)[0] for columns in (6912, 3456))
    assert twice == pytest.approx(2 * once) and once % 1  # 216 blocks of 132 processors
    plain, gated = rows_of(544, 16384, 2048), rows_of(544, 32768, 2048, name="gate and up")
    assert plain.by == ROWS and gated.by == GATED
    assert rows_us(gated, BARE) > 1.1 * rows_us(plain, BARE)


def test_products_of_rows_in_8_bits_are_corrected_by_those_of_their_kernel_alone() -> None:
    op, gated = rows_of(544, 2560, 2048), rows_of(544, 2560, 2048, name="gate and up")
    taught = replace(BARE, gemm=(Shape(544, 2560, 2048, "int8 rows", 3 * price(op, BARE).us),))
    assert price(op, taught).us == pytest.approx(3 * price(op, BARE).us)
    assert price(gated, taught).us == price(gated, BARE).us
    assert price(replace(op, by=""), taught).us == price(replace(op, by=""), BARE).us
    measured = {(shape.m, shape.n, shape.k, shape.dtype): shape.us for shape in H200.gemm}
    assert price(op, H200).us == pytest.approx(measured[544, 2560, 2048, "int8 rows"])


def test_rows_in_8_bits_have_the_rate_of_the_device_where_the_kernel_was_not_measured() -> None:
    orin = load("orin-agx-64")
    plain = product("qkv", 1, 544, 2560, 2048, "int8")
    ours = of_rows([plain])[0]
    assert own_rate(ours, orin) is None and price(ours, orin).us == price(plain, orin).us
    assert own_rate(ours, H200) == "int8_rows_tflops" and price(ours, H200).us > 1.2 * price(plain, H200).us
    cuda = (Shape(544, 2560, 2048, "int8", 5 * price(plain, orin).us),)  # as --measure has it, by cuBLAS
    assert price(ours, replace(orin, gemm=cuda)).us == pytest.approx(5 * price(plain, orin).us)
    assert price(ours, replace(BARE, gemm=cuda)).us == price(ours, BARE).us
    slower = replace(BARE, numbers={**BARE.numbers, "int8_rows_tflops": Number(100.0, "measured", "", 0.1)})
    assert price(ours, slower).us > price(ours, BARE).us


def test_attention_of_plain_torch_comes_in_waves_of_its_blocks() -> None:
    few, one, two = (attention("a", 1, 256, 256, heads, heads, 64, by=SDPA) for heads in (16, 66, 67))
    times = [price(op, BARE).us - BARE.value("start_us") for op in (few, one, two)]
    assert times[0] == pytest.approx(times[1]) and times[2] == pytest.approx(2 * times[1])
    padded = attention("a", 1, 256, 256, 16, 16, 72, by=SDPA)  # heads of 72 are computed as of 96
    assert price(padded, BARE).us - BARE.value("start_us") == pytest.approx(1.5 * times[0])


def test_attention_is_corrected_by_attentions_that_were_launched_alike() -> None:
    op = attention("a", 1, 256, 256, 16, 16, 64, by=SDPA)
    taught = replace(BARE, gemm=(Shape(16 * 256, 64, 256, SDPA, 2 * price(op, BARE).us),))
    assert correction(op, taught) == pytest.approx(2.0, rel=0.2)
    assert correction(replace(op, by=PACKED), taught) == 1.0


def test_what_is_uncertain_of_numbers_is_uncertain_of_times() -> None:
    op = product("p", 5, 544, 4096, 4096)
    sure = replace(BARE, numbers={n: replace(v, within=0.0) for n, v in BARE.numbers.items()})
    exact, time = price(op, sure), price(op, BARE)
    assert exact.low_us == exact.us == exact.high_us
    assert time.low_us < time.us < time.high_us
    assert total([op, op], BARE).us == pytest.approx(2 * time.us)


def test_a_dtype_that_a_device_does_not_multiply_is_refused() -> None:
    with pytest.raises(ValueError, match=r"A100 .*fp8_tflops"):
        price(product("p", 1, 64, 64, 64, "fp8"), load("a100"))


@pytest.mark.parametrize("slower", ["orin-nx-16", "orin-agx-64:30w", "l4"])
def test_slower_devices_take_longer(slower: str) -> None:
    ops = [product("p", 1, 544, 4096, 2048), one_pass("n", 1, 544, 2048, 2048)]
    device: Device = load(slower)
    assert total(ops, device).us > 3 * total(ops, H200).us


ASKED = (
    *("a10", "a100", "a6000", "gb10", "h100", "h200", "l4", "l40s", "thor"),
    *("orin-agx-32", "orin-agx-64", "orin-nano-8", "orin-nx-16"),
    *(f"rtx-{number}" for number in (3060, 3080, 3090, 4070, 4080, 4090, 5080, 5090)),
)


def test_there_is_a_file_of_every_device_that_is_spoken_of() -> None:
    assert set(ASKED) <= set(names())


@pytest.mark.parametrize("name", names())
def test_every_number_of_a_device_says_where_it_is_from(name: str) -> None:
    device = load(name)
    assert NUMBERS.keys() - set(OPTIONAL) <= device.numbers.keys()
    for number in device.numbers.values():
        assert number.source in SOURCES and len(number.words) > 5 and 0 < number.within < 1
    for mode in device.modes:
        assert device.in_mode(mode).watts <= device.watts


def test_a_mode_scales_clocks_memory_and_starts() -> None:
    full, slow = load("orin-agx-64:maxn"), load("orin-agx-64:15w")
    mode = load("orin-agx-64").modes["15w"]
    share = mode.clock * mode.sms
    assert slow.rate("bf16") == pytest.approx(share * full.rate("bf16"))
    assert slow.value("bandwidth_gb_s") == pytest.approx(mode.memory * full.value("bandwidth_gb_s"))
    assert slow.value("start_us") == pytest.approx(full.value("start_us") / mode.clock)
    assert (slow.watts, slow.mode, slow.sms) == (15, "15w", 6)


@pytest.mark.parametrize(
    ("name", "said"), [("orin-agx-64:99w", "power mode '99w'"), ("h300", "no device 'h300'")]
)
def test_what_there_is_not_is_refused_with_what_there_is(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        load(name)


def good() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / "h200.yaml").read_text())
    return found


def test_numbers_that_yaml_takes_for_texts_are_numbers() -> None:
    data = good()
    data["numbers"]["start_us"]["value"], data["watts"], data["gemm"] = (
        "1e1",
        "7e2",
        [[1, 2, 3, "bf16", "1e6"]],
    )
    device = read(data, "FILE")
    assert (device.value("start_us"), device.watts, device.gemm[0].us) == (10.0, 700.0, 1e6)


def test_a_file_of_somebodys_own_is_taken(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text((FOLDER / "h200.yaml").read_text())
    assert load(str(tmp_path / "mine.yaml")) == load("h200")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d["numbers"].pop("start_us"), "lacks start_us"),
        (lambda d: d["numbers"].update(speed=d["numbers"]["start_us"]), "speed"),
        (lambda d: d["numbers"]["start_us"].update(source="heard"), "'heard'"),
        (lambda d: d["numbers"]["start_us"].update(value=-1), "positive"),
        (lambda d: d["numbers"]["start_us"].update(value=float("nan")), "positive"),
        (lambda d: d["numbers"]["start_us"].pop("within"), "no device file"),
        (lambda d: d.pop("sms"), "no device file"),
        (lambda d: d.update(gemm=[[1, 2]]), "no device file"),
        *(
            (lambda d, v=v: d.update(sms=v), "FILE: sms is .*whole number")
            for v in (0, -1, 1.5, float("inf"), "x")
        ),
        (lambda d: d.update(memory_gb=float("nan")), "FILE: memory_gb is nan"),
        (lambda d: d.update(watts="much"), "FILE: watts is 'much'"),
        (lambda d: d.update(capability=10**400), "FILE: capability is 1000"),
        (lambda d: d["numbers"]["start_us"].update(value="soon"), "FILE: start_us is soon"),
        (lambda d: d["numbers"]["start_us"].update(value=True), "FILE: start_us is True"),
        (lambda d: d.update(gemm=[[0, 1, 1, "bf16", 1.0]]), "FILE, gemm .*: m is 0"),
        (lambda d: d.update(gemm=[[1, 1, 1, "bf16", 0.0]]), "FILE, gemm .*: us is 0.0"),
        (lambda d: d.update(gemm=[[1, 1, 1, "fp77", 1.0]]), "FILE, gemm .*: dtype is 'fp77'"),
        (lambda d: d.update(gemm=[[1, 1, 1, 7, 1.0]]), "FILE, gemm .*: dtype is 7"),
        (lambda d: d.update(modes={"slow": {"watts": 5, "clock": 0}}), "FILE, mode slow: clock is 0"),
    ],
)
def test_a_file_that_is_none_is_refused_in_one_sentence(change: Any, said: str) -> None:
    data = deepcopy(good())
    change(data)
    with pytest.raises(ValueError, match=said):
        read(data, "FILE")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1", "no device file: while parsing"),
        ("a" * 3_000_000, "at most"),
        ("[" * 9000, "no device file"),
    ],
)
def test_a_file_that_is_no_yaml_is_refused_in_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ValueError, match=said) as refusal:
        load(str(tmp_path / "mine.yaml"))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("gpu", "name"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 5090 D", None),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA RTX A6000", "a6000"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA GB10", "gb10"),
        ("NVIDIA GeForce RTX 3080 Ti", None),
        ("NVIDIA GeForce RTX 4070 SUPER", None),
        ("Orin", None),
        ("", None),
    ],
)
def test_a_gpu_finds_its_file_by_name(gpu: str, name: str | None) -> None:
    assert named_like(gpu) == name
