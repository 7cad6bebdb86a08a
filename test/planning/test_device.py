"""Device files: what they must have, what is refused, power modes, and names of GPUs."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from vla_accel_ros.planning.device import FOLDER, NUMBERS, OPTIONAL, SOURCES, load, named_like, names, read

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
