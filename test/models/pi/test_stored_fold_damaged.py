"""A fold beside the weights that is damaged, of something else, or not there: refused, or not used."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from builders import make_checkpoint, make_config
from folders import edit_weights, refused
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from stored_folds import STEPS, computed, equal, model_of, rewrite
from torch import Tensor

from vla_accel_ros.models.checkpoints.checkpoint import describe
from vla_accel_ros.models.checkpoints.conversion import Target, convert, verify
from vla_accel_ros.models.config import GemmaConfig
from vla_accel_ros.models.pi.folding import fold_expert
from vla_accel_ros.models.pi.stored_fold import FOLDED

pytestmark = pytest.mark.usefixtures("warnings_are_errors")


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_one_is_refused_or_not_used(
    converted_with_fold: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Any bytes overwritten, any end cut off: one sentence, or the numbers that would be computed."""
    folder = Path(shutil.copytree(converted_with_fold, tmp_path_factory.mktemp("damaged") / "copy"))
    whole = bytearray((folder / FOLDED).read_bytes())
    if data.draw(st.booleans(), label="cut"):
        whole = whole[: data.draw(st.integers(0, len(whole) - 1))]
    else:
        start = data.draw(st.integers(0, len(whole) - 1))
        junk = data.draw(st.binary(min_size=1, max_size=8))
        whole[start : start + len(junk)] = junk
    (folder / FOLDED).write_bytes(bytes(whole))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            model = model_of(folder)
            expert = fold_expert(model, STEPS)
        except ValueError as error:
            assert str(folder / FOLDED) in str(error) and "\n" not in str(error)
            return
    assert equal(expert, computed(model))


@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_one_changed_bit_is_found(with_fold: Path, place: str) -> None:
    def flip(file: dict[str, Tensor]) -> None:
        numbers = file["out_weight"].view(torch.int32).view(-1)
        numbers[{"first": 0, "middle": len(numbers) // 2, "last": -1}[place]] ^= 1

    rewrite(with_fold, flip)
    with pytest.raises(ValueError, match=r"folded.safetensors is damaged"):
        fold_expert(model_of(with_fold), STEPS)
    with pytest.raises(ValueError, match=r"folded.safetensors is not what was converted"):
        verify(with_fold)


def test_a_truncated_one_keeps_the_folder_from_being_loaded(with_fold: Path) -> None:
    file = with_fold / FOLDED
    file.write_bytes(file.read_bytes()[:-1])
    refused(with_fold, str(file), "is not a readable safetensors file")
    assert [str(file) in sentence for sentence in describe(with_fold).missing] == [True]
    with pytest.raises(ValueError, match="is not a readable safetensors file"):
        convert(with_fold, with_fold.with_name("again"))
    assert not with_fold.with_name("again").exists()


def test_one_of_other_sizes_is_refused(with_fold: Path, tmp_path: Path) -> None:
    kind = describe(with_fold).config.kind
    stack = GemmaConfig(width=24, depth=1, mlp=48, heads=4, kv_heads=1, head_dim=8)
    prefix = GemmaConfig(width=32, depth=1, mlp=64, heads=4, kv_heads=1, head_dim=8)
    other = make_checkpoint(tmp_path / "other", make_config(kind, expert=stack, prefix=prefix))
    out = convert(other, tmp_path / "out", target=Target(steps=STEPS, dtype="float32"))
    shutil.copyfile(out / FOLDED, with_fold / FOLDED)
    refused(with_fold, str(with_fold / FOLDED), "does not fit", "remove it")


@pytest.mark.parametrize(
    "said", ["", "[]", "{}", '{"steps": true, "time_rule": "openpi", "dtype": "float32"}', "[" * 2000]
)
def test_a_header_that_says_nothing_is_refused(with_fold: Path, said: str) -> None:
    save_file(load_file(with_fold / FOLDED), with_fold / FOLDED, {"vla_accel_ros.folded": said})
    refused(with_fold, str(with_fold / FOLDED), "does not say in its header", "remove it")


def test_a_link_out_of_the_folder_is_refused(with_fold: Path) -> None:
    away = shutil.move(with_fold / FOLDED, with_fold.parent / "elsewhere")
    (with_fold / FOLDED).symlink_to(away)
    refused(with_fold, FOLDED, "outside of its folder")


def test_without_it_everything_is_computed_and_verify_says_so(with_fold: Path) -> None:
    (with_fold / FOLDED).unlink()
    model = model_of(with_fold)
    assert model.fold is None and equal(fold_expert(model, STEPS), computed(model))
    with pytest.raises(ValueError, match=r"folded.safetensors is not there"):
        verify(with_fold)


def test_one_that_the_provenance_does_not_name_is_found_by_verify(with_fold: Path) -> None:
    file = with_fold / "config.json"
    said = json.loads(file.read_text())
    del said["provenance"]["folded"]
    file.write_text(json.dumps(said))
    with pytest.raises(ValueError, match=r"folded.safetensors is there"):
        verify(with_fold)


def test_edited_weights_of_its_own_folder_are_noticed(with_fold: Path) -> None:
    def retrain(weights: dict[str, Tensor]) -> None:
        weights["action_in_proj.weight"][0, 0] += 0.5

    source = convert(with_fold, with_fold.with_name("plain"), target=Target(plain=True))
    edit_weights(source / "model.safetensors", retrain)
    shutil.copyfile(with_fold / FOLDED, source / FOLDED)
    with pytest.warns(UserWarning, match="computed from other weights"):
        expert = fold_expert(model_of(source), STEPS)
    assert equal(expert, computed(model_of(source)))
