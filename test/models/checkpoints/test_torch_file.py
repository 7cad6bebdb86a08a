"""Files of torch.save are read as data: tensors by name, and nothing is imported or called."""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from vla_accel_ros.models.checkpoints.shards import read_headers
from vla_accel_ros.models.checkpoints.torch_file import TorchFile

TENSORS = {
    "module.a": torch.arange(6.0).view(2, 3),
    "module.b": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "module.c": torch.tensor(3.0, dtype=torch.float16),
    "module.empty": torch.zeros(0, 4),
    "module.steps": torch.tensor([7]),
}


def test_torch_file_has_what_was_saved(tmp_path: Path) -> None:
    file = tmp_path / "part.pt"
    torch.save(TENSORS, file)
    table = read_headers(file)
    assert {name: stored.shape for name, stored in table.items()} == {
        n: tuple(t.shape) for n, t in TENSORS.items()
    }
    with TorchFile(file) as opened:
        for name, tensor in TENSORS.items():
            assert torch.equal(opened.get_tensor(name), tensor), name
        assert torch.equal(opened.get_slice("module.a")[1:], TENSORS["module.a"][1:])


def test_torch_file_of_a_module_and_of_views_of_one_storage(tmp_path: Path) -> None:
    """state_dict is an OrderedDict with versions; a saved part may be a view that begins in the middle."""
    model, rows = nn.Linear(3, 2), torch.arange(12.0).view(4, 3)
    saved = OrderedDict(model.state_dict(), rows=rows[2:])
    saved._metadata = {}  # type: ignore[attr-defined]
    torch.save(saved, tmp_path / "part.pt")
    with TorchFile(tmp_path / "part.pt") as opened:
        assert torch.equal(opened.get_tensor("weight"), model.weight) and opened.keys() == [*saved]
        assert torch.equal(opened.get_tensor("rows"), rows[2:])


class Trap:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize(
    "content",
    [
        lambda mark: {"a": Trap(mark)},
        lambda mark: {"a": 1},
        lambda mark: [torch.zeros(2)],
        lambda mark: {"a": torch.zeros(2, 3).t()},
        lambda mark: nn.Linear(2, 2),
        lambda mark: {"a": torch.zeros(2, dtype=torch.bool)},
    ],
    ids=["trap", "number", "list", "turned", "module", "bool"],
)
def test_torch_file_with_anything_else_is_refused_and_not_run(content: Any, tmp_path: Path) -> None:
    file, mark = tmp_path / "part.pt", tmp_path / "mark"
    torch.save(content(mark), file)
    with pytest.raises(ValueError, match=r"part\.pt"):
        TorchFile(file)
    assert not mark.exists()


@pytest.mark.parametrize("kind", ["cut", "pickle", "empty", "index"])
def test_torch_file_that_is_broken_is_refused(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "part.pt"
    torch.save(TENSORS, file)
    whole = file.read_bytes()
    if kind == "cut":
        file.write_bytes(whole[: len(whole) // 2])
    elif kind == "pickle":
        file.write_bytes(pickle.dumps({"a": 1}))
    elif kind == "empty":
        file.write_bytes(b"")
    else:
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("part/data.pkl", b"\x80\x02}(")
    with pytest.raises(ValueError, match=r"part\.pt"):
        TorchFile(file)


def test_torch_file_whose_storage_is_too_short_is_refused(tmp_path: Path) -> None:
    torch.save(TENSORS, tmp_path / "whole.pt")
    with zipfile.ZipFile(tmp_path / "whole.pt") as whole, zipfile.ZipFile(tmp_path / "part.pt", "w") as part:
        for name in whole.namelist():
            part.writestr(name, whole.read(name)[:4] if name.endswith("data/0") else whole.read(name))
    with TorchFile(tmp_path / "part.pt") as opened, pytest.raises(ValueError, match=r"module\.a"):
        opened.get_tensor("module.a")
