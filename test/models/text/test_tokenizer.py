"""Both file formats, and the errors for files that do not fit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from builders import make_tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers

from vla_accel_ros.models.text.tokenizer import JsonTokenizer, SentencePieceTokenizer, load_tokenizer

DATA = Path(__file__).parents[2] / "data"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_tokenizer().save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_json_encodes_and_decodes(folder: Path) -> None:
    tokenizer = load_tokenizer(folder, vocab=300)
    ids = tokenizer.encode("reach the red block", bos=True)
    assert ids[0] == 2
    assert tokenizer.eos == 1
    assert ids[1:] == tokenizer.encode("reach the red block")
    assert tokenizer.decode([*ids, 1]) == "reach the red block"


def test_special_tokens_in_the_text_are_only_text(folder: Path) -> None:
    tokenizer = load_tokenizer(folder, vocab=300)
    ids = tokenizer.encode("reach <eos> the <bos>", bos=True)
    assert ids[0] == 2 and not {1, 2} & set(ids[1:])


def test_padding_and_truncation_that_the_file_was_saved_with_do_not_apply(folder: Path) -> None:
    inner = make_tokenizer()
    inner.enable_padding(length=12)
    inner.enable_truncation(max_length=2)
    inner.save(str(folder / "tokenizer.json"))
    assert len(load_tokenizer(folder, vocab=300).encode("reach the red block")) == 4


def test_a_vocabulary_without_a_beginning_cannot_begin(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    path.write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    tokenizer = JsonTokenizer(path)
    assert tokenizer.eos is None
    assert tokenizer.encode("a") == [0]
    with pytest.raises(ValueError, match=r"<bos>.*<s>"):
        tokenizer.encode("a", bos=True)


def test_sentencepiece_encodes_and_decodes(tmp_path: Path) -> None:
    shutil.copy(DATA / "tiny_sentencepiece.model", tmp_path / "tokenizer.model")
    tokenizer = load_tokenizer(tmp_path, vocab=300)
    ids = tokenizer.encode("reach the red block", bos=True)
    assert ids[0] == 2
    assert tokenizer.eos == 1
    assert tokenizer.decode(ids[1:]) == "reach the red block"
    newline = tokenizer.encode("\n")
    assert tokenizer.decode(newline) == "\n"


def test_ids_that_only_pad_the_embedding_have_no_text(folder: Path) -> None:
    shutil.copy(DATA / "tiny_sentencepiece.model", folder / "alone.model")
    for tokenizer in (load_tokenizer(folder, 400), SentencePieceTokenizer(folder / "alone.model")):
        ids = tokenizer.encode("reach")
        assert tokenizer.decode([tokenizer.size, *ids, 399]) == tokenizer.decode(ids) != ""


def test_a_text_that_the_vocabulary_does_not_know_is_refused_with_the_file(tmp_path: Path) -> None:
    model = {"type": "WordLevel", "vocab": {"reach": 0}, "unk_token": "<unk>"}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": model}))
    tokenizer = load_tokenizer(tmp_path, vocab=300)
    assert tokenizer.encode("reach") == [0]
    with pytest.raises(ValueError, match=r"tokenizer\.json cannot encode 'lift'"):
        tokenizer.encode("lift")


def test_json_goes_before_sentencepiece(folder: Path) -> None:
    (folder / "tokenizer.model").write_bytes(b"not read")
    assert isinstance(load_tokenizer(folder, vocab=300), JsonTokenizer)


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tokenizer\.json .*tokenizer\.model"):
        load_tokenizer(tmp_path, vocab=300)


def test_more_ids_than_the_model_embeds(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"282 ids .* 281"):
        load_tokenizer(folder, vocab=make_tokenizer().get_vocab_size() - 1)


@pytest.mark.parametrize(
    ("pieces", "special", "rows"),
    [(257152, 1, 257152), (49152, 128, 49280), (49152, 128, 49152), (32000, 1, 32064), (32000, 1, 32000)],
    ids=["PaliGemma", "SmolVLM2", "SmolVLM2 cut", "Llama", "Llama cut"],
)
def test_special_ids_that_no_text_becomes_do_not_count(
    tmp_path: Path, pieces: int, special: int, rows: int
) -> None:
    vocab = {"<pad>": 0, "<eos>": 1, "<bos>": 2, "<unk>": 3} | {f"w{i}": i for i in range(4, pieces)}
    inner = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.add_special_tokens(["<bos>", *(f"<image{i}>" for i in range(special))])
    inner.save(str(tmp_path / "tokenizer.json"))
    ids = load_tokenizer(tmp_path, rows).encode(f"<image0> w{pieces - 1}", bos=True)
    assert ids == [2, 3, pieces - 1]
    with pytest.raises(ValueError, match=f"{pieces} ids but the model embeds {pieces - 1}"):
        load_tokenizer(tmp_path, pieces - 1)


def test_a_text_that_becomes_an_id_without_a_row_is_refused(tmp_path: Path) -> None:
    """A word of the vocabulary that is a special token, too, is encoded as text."""
    inner = Tokenizer(models.WordLevel({"<unk>": 0, "<bos>": 1, "reach": 2, "<image>": 3}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.add_special_tokens(["<image>"])
    inner.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path, 3)
    assert tokenizer.encode("reach", bos=True) == [1, 2]
    with pytest.raises(ValueError, match=r"'reach <image>' .* 3"):
        tokenizer.encode("reach <image>")


def test_added_tokens_that_text_does_become_count(folder: Path) -> None:
    inner = make_tokenizer()
    inner.add_tokens(["<loc0000>"])
    inner.save(str(folder / "tokenizer.json"))
    with pytest.raises(ValueError, match=r"283 ids .* 282"):
        load_tokenizer(folder, 282)


def test_a_tokenizer_model_beside_a_json_that_does_not_fit_is_taken(folder: Path) -> None:
    shutil.copy(DATA / "tiny_sentencepiece.model", folder / "tokenizer.model")
    vocab = SentencePieceTokenizer(folder / "tokenizer.model").size
    inner = make_tokenizer()
    inner.add_tokens([f"piece{i}" for i in range(vocab)])
    inner.save(str(folder / "tokenizer.json"))
    assert isinstance(load_tokenizer(folder, vocab), SentencePieceTokenizer)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer.model"])
def test_broken_files(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"{broken")
    with pytest.raises(ValueError, match=f"{name} is not a readable"):
        load_tokenizer(tmp_path, vocab=300)
