"""Which Config a launch gets, and what is said of a table that cannot be read."""

from __future__ import annotations

import dataclasses
import json
import sys
from importlib import resources
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from vla_accel_ros.kernels.block_shapes import chosen
from vla_accel_ros.kernels.candidates import CANDIDATES
from vla_accel_ros.kernels.gpu import Gpu, gpu_of
from vla_accel_ros.kernels.shapes import ATTENTION, INT8_GATED, INT8_PRODUCT, PARTED, Config, Shape
from vla_accel_ros.kernels.tuning import (
    Table,
    cache_file,
    load_table,
    packaged_table,
    read_table,
)

SHAPE = Shape("project", 51, 1024, 4096, "bfloat16")
A, B = Config(16, 32, 64), Config(64, 16, 32)


def test_an_entry_serves_all_rows_up_to_a_power_of_two() -> None:
    table = Table(Gpu(132), {SHAPE.key: A})
    assert SHAPE.key == "project/64/1024/4096/bfloat16"
    assert table.pick(SHAPE) == table.pick(dataclasses.replace(SHAPE, rows=33)) == A


def test_the_nearest_number_of_rows_serves_where_there_is_no_entry() -> None:
    small, large = dataclasses.replace(SHAPE, rows=16), dataclasses.replace(SHAPE, rows=512)
    table = Table(Gpu(132), {small.key: A, large.key: B})
    assert table.pick(dataclasses.replace(SHAPE, rows=32)) == A
    assert table.pick(dataclasses.replace(SHAPE, rows=800)) == B
    other = dataclasses.replace(SHAPE, columns=1000)
    assert table.pick(other) == chosen(other, Gpu(132))


def test_attention_has_one_entry_for_any_number_of_keys() -> None:
    few, many = (Shape("attend", 408, keys, 256, "bfloat16") for keys in (300, 900))
    assert few.key == many.key


def test_kernels_for_hopper_also_take_fewer_rows_but_not_more_or_others() -> None:
    few, many = "project/64/16/32/bfloat16", "project/256/16/32/bfloat16"
    table = Table(Gpu(132), hopper={few: A, many: B}, smaller={many: A})

    def configs(rows: int, columns: int = 16, kernel: str = "project") -> list[Config]:
        return table.pick_hopper(Shape(kernel, rows, columns, 32, "bfloat16"))

    assert [configs(rows) for rows in (1, 64, 65, 256, 257)] == [[A], [A], [B, A], [B, A], []]
    assert configs(64, columns=48) == configs(64, kernel="gated_up") == []


def test_a_table_reads_what_it_wrote() -> None:
    hopper, smaller = ({SHAPE.key: Config(64, 80, 128, split, 4, 1, "cuda")} for split in (8, 4))
    entries = {SHAPE.key: A, "attend/512/any/256/bfloat16": B}
    table = Table(Gpu(132), entries, pdl=True, hopper=hopper, smaller=smaller)
    again = read_table(json.dumps(table.to_json()), "mine.json", Gpu(132))
    assert (again.entries, again.pdl, again.source) == (table.entries, True, "mine.json")
    assert (again.hopper, again.smaller) == (hopper, smaller)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"format": 2, "pdl": false, "configs": {}}',
        '{"format": 1, "pdl": false, "configs": {"p/64": {"block_m": 24, "block_n": 16, "block_k": 16}}}',
        '{"format": 1, "pdl": false, "configs": {"p/64": {"rows": 16}}}',
        '{"format": 1, "pdl": false, "configs": {"p/64": {"block_m": 16, "block_n": 80, "block_k": 16}}}',
        '{"format": 1, "pdl": true, "hopper": {"p/64": {"block_m": 64, "block_n": 8, "block_k": 64}}}',
        '{"format": 1, "pdl": 1, "hopper": {"p": {"block_m": 64, "block_n": 16, "block_k": 16, "way": 1}}}',
    ],
)
def test_a_table_that_is_none_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(ValueError, match=r"^mine\.json .*vla tune"):
        read_table(text, "mine.json", Gpu(132))


def test_tables_of_the_package_can_be_read() -> None:
    folder = resources.files("vla_accel_ros.kernels") / "tuning"
    names = [file.name for file in folder.iterdir() if file.name.endswith(".json")]
    assert "sm_90.json" in names
    for name in names:
        table = read_table((folder / name).read_text(), name, Gpu(132, 90))
        known = {name.split()[0] for name in CANDIDATES} | {*ATTENTION, PARTED, INT8_PRODUCT, INT8_GATED}
        assert {key.split("/")[0] for key in table.entries} <= known


def test_a_partition_has_the_table_of_its_size_or_that_of_the_device(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    device, gpu = torch.device("cuda", 0), SimpleNamespace(major=9, minor=0, multi_processor_count=132)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: gpu)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda _: "NVIDIA H200")
    gpu_of.cache_clear()
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__="3.6.0"))
    assert cache_file(device).name.startswith("NVIDIA-H200-torch")
    assert cache_file(device, 32).name.startswith("NVIDIA-H200-32sms-torch")
    own = cache_file(device, 32)
    own.parent.mkdir(parents=True)
    own.write_text(json.dumps(Table(Gpu(32), {SHAPE.key: A}).to_json()))
    table = load_table(device, 32)
    assert (table.gpu.processors, table.entries, table.source) == (32, {SHAPE.key: A}, str(own))
    for other in (None, 100):
        assert load_table(device, other).source == "sm_90.json", "the same launches, so the same bits"
        assert load_table(device, other).gpu.processors == 132
    own.write_text("{")
    with pytest.raises(ValueError, match=r"32sms.* is no tuning table"):
        load_table(device, 32)
    gpu_of.cache_clear()


def test_a_capability_has_the_table_of_the_package_or_an_empty_one() -> None:
    packaged = packaged_table(Gpu(132, 90))
    assert packaged.source == "sm_90.json" and packaged.gpu == Gpu(132, 90)
    assert Shape("int8_product", 544, 2560, 2048, "int8").key in packaged.entries
    assert packaged_table(Gpu(108, 80)) == Table(Gpu(108, 80))
