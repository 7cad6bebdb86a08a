"""A checkpoint is known by what is in it, not by where or when."""

from __future__ import annotations

import os
import shutil

import pytest
from builders import make_checkpoint

from vla_accel_ros.models.checkpoints.checksum import checksum


def test_a_copy_is_the_same_checkpoint(tmp_path):
    model = make_checkpoint(tmp_path / "model")
    found = checksum(model)
    assert len(found) == 64 and found == checksum(model)
    shutil.copytree(model, tmp_path / "copy")
    os.utime(tmp_path / "copy" / "config.json", (0, 0))
    (tmp_path / "copy" / "README.md").write_text("notes")
    (tmp_path / "copy" / ".cache").mkdir()
    (tmp_path / "copy" / ".cache" / "lock").write_text("")
    assert checksum(tmp_path / "copy") == found


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "assets/arm/norm_stats.json"])
def test_one_bit_is_another_checkpoint(tmp_path, file):
    model = make_checkpoint(tmp_path / "model")
    found = checksum(model)
    content = bytearray((model / file).read_bytes())
    content[-1] ^= 1
    (model / file).write_bytes(content)
    assert checksum(model) != found


def test_another_name_is_another_checkpoint(tmp_path):
    model = make_checkpoint(tmp_path / "model")
    found = checksum(model)
    (model / "assets" / "arm").rename(model / "assets" / "leg")
    assert checksum(model) != found


def test_it_can_be_broken_off_and_needs_a_file(tmp_path):
    model = make_checkpoint(tmp_path / "model")
    assert checksum(model, lambda: True) == ""
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no file"):
        checksum(tmp_path / "empty")
