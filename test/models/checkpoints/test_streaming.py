"""Weights stream: whatever the files, the host holds little beside the model; nothing is loaded partly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from openvla_builders import make_openvla_config, make_openvla_folder
from safetensors.torch import save_file
from torch import nn

from vla_accel_ros.models.checkpoints import streaming
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.checkpoints.shards import read_headers, read_table
from vla_accel_ros.models.checkpoints.streaming import fill, is_finite, on_meta, read, same

ROOT = Path(__file__).resolve().parents[3]
MB = 1 << 20
SHARDS, SHARD_TENSORS, TENSOR_MB = 4, 8, 8


class Wide(nn.Module):
    """Tensors and nothing else."""

    def __init__(self, names: list[str], numbers: int) -> None:
        super().__init__()
        for name in names:
            self.register_parameter(name, nn.Parameter(torch.empty(numbers)))


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """256 MB of bfloat16 in four shards."""
    folder = tmp_path_factory.mktemp("shards")
    where: dict[str, str] = {}
    for shard in range(SHARDS):
        names = [f"t{shard}_{index}" for index in range(SHARD_TENSORS)]
        tensors = {name: torch.full((TENSOR_MB * MB // 2,), 0.5, dtype=torch.bfloat16) for name in names}
        save_file(tensors, folder / f"model-{shard}.safetensors")
        where |= dict.fromkeys(names, f"model-{shard}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return folder


MEASURE = """
import sys, torch
from pathlib import Path
from vla_accel_ros.models.checkpoints import streaming
from vla_accel_ros.models.checkpoints.shards import read_table
sys.path.insert(0, {test!r})
from test_streaming import Wide

def status(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

torch.set_num_threads(1)
table = read_table(Path({folder!r}))
total = sum(stored.bytes for stored in table.values())
with streaming.on_meta():
    model = Wide(list(table), {numbers}).bfloat16()
next(iter(streaming.read(table, list(table)[:1])))  # what is loaded at the first use
before = status("VmRSS")
streaming.fill(model, streaming.read(table, table), torch.device("cpu"), total, "here")
kept = sum(parameter.nbytes for parameter in model.parameters())
print(status("VmHWM") - before - kept)
"""


def test_beside_the_model_the_host_holds_no_more_than_a_shard(shards: Path) -> None:
    """On a CPU the model itself is in the host's memory; on a GPU this is all that is."""
    numbers = TENSOR_MB * MB // 2
    code = MEASURE.format(folder=str(shards), test=str(Path(__file__).parent), numbers=numbers)
    paths = [str(ROOT), str(ROOT / "test"), *sys.path]
    environment = {"PYTHONPATH": ":".join(path for path in paths if path), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr
    largest = SHARD_TENSORS * TENSOR_MB * MB
    assert int(ran.stdout) <= 1.2 * largest, f"{int(ran.stdout) / MB:.0f} MB beside the model"


def test_every_tensor_comes_once_file_by_file(shards: Path) -> None:
    table = read_table(shards)
    names = [name for name, _ in read(table, table)]
    assert sorted(names) == sorted(table)
    files = [table[name].file for name in names]
    assert files == sorted(files)


def test_a_model_on_meta_draws_no_numbers_and_loads_no_compiler() -> None:
    code = (
        "import sys; from vla_accel_ros.models.config import PI05\n"
        "from vla_accel_ros.models.openvla.config import OPENVLA_7B\n"
        "from vla_accel_ros.models.checkpoints.streaming import empty\n"
        "from vla_accel_ros.models.pi.model import Pi\n"
        "from vla_accel_ros.models.openvla.model import OpenVLA\n"
        "models = empty(Pi, PI05), empty(OpenVLA, OPENVLA_7B)\n"
        "print({p.device.type for m in models for p in m.parameters()}, 'torch._dynamo' in sys.modules)"
    )
    environment = {"PYTHONPATH": f"{ROOT}:{':'.join(filter(None, sys.path))}"}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert ran.stdout.strip() == "{'meta'} False", ran.stderr


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("where", [0, 1234, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_number_that_is_not_finite_is_found(bad: float, where: int, dtype: torch.dtype) -> None:
    values = torch.zeros(50, 70, dtype=dtype)
    assert is_finite(values)
    values.view(-1)[where] = bad
    assert not is_finite(values)


def test_every_broken_tensor_is_named(tmp_path: Path) -> None:
    good, nan = torch.zeros(3), torch.tensor([0.0, float("nan"), 1.0])
    save_file({"a": nan, "b": good, "c": nan.clone()}, tmp_path / "model.safetensors")
    table = read_table(tmp_path)
    with on_meta():
        model = Wide(["a", "b", "c"], 3)
    with pytest.raises(ValueError, match=r"finite in \['a', 'c'\]"):
        fill(model, read(table, table), torch.device("cpu"), 36, "somewhere")


def test_a_number_too_large_for_bfloat16_is_not_made_infinite(tmp_path: Path) -> None:
    save_file({"a": torch.full((3,), 3.4e38)}, tmp_path / "model.safetensors")
    table = read_table(tmp_path)
    with on_meta():
        model = Wide(["a"], 3).bfloat16()
    with pytest.raises(ValueError, match=r"finite in \['a'\]"):
        fill(model, read(table, table), torch.device("cpu"), 12, "here")


@given(rows=st.integers(1, 40), columns=st.integers(1, 9), odd=st.integers(0, 359), differs=st.booleans())
def test_two_tensors_are_compared_whole(
    tmp_path_factory: pytest.TempPathFactory, rows: int, columns: int, odd: int, differs: bool
) -> None:
    one = torch.arange(float(rows * columns)).reshape(rows, columns)
    other = one.clone()
    if differs:
        other.view(-1)[odd % (rows * columns)] += 1
    file = tmp_path_factory.mktemp("same") / "model.safetensors"
    save_file({"a": one, "b": other}, file)
    block, streaming.BLOCK = streaming.BLOCK, 1
    try:
        assert same(read_headers(file), "a", "b") is not differs
    finally:
        streaming.BLOCK = block


@pytest.mark.gpu
def test_the_gpu_gets_the_same_weights(tmp_path: Path) -> None:
    folder = make_openvla_folder(tmp_path, make_openvla_config(), shards=3)
    here, there = (load_policy(folder, device).model.state_dict() for device in ("cpu", "cuda"))
    assert all(torch.equal(there[name].cpu(), tensor) for name, tensor in here.items())
    assert {tensor.device.type for tensor in there.values()} == {"cuda"}
