"""Text streams in pieces that hold whole characters, and ends before the texts it must end at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from vla_accel_ros.models.text.tokenizer import JsonTokenizer, SentencePieceTokenizer, TextStream

DATA = Path(__file__).parents[2] / "data"
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=20)


class Bytes:
    """A tokeniser of one token a byte, the hardest case."""

    size = words = 256
    begins = False
    eos: int | None = None

    def encode(self, text: str, bos: bool = False) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode(errors="replace")


@pytest.fixture(scope="module", params=["bytes", "byte level", "byte fallback", "sentencepiece"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    if request.param == "bytes":
        return Bytes()
    if request.param == "sentencepiece":
        return SentencePieceTokenizer(DATA / "tiny_sentencepiece.model")
    if request.param == "byte level":  # as GPT's
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        inner = Tokenizer(models.BPE({piece: i for i, piece in enumerate(alphabet)}, []))
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        inner.decoder = decoders.ByteLevel()
    else:  # as Llama's and Gemma's
        pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"abcdefgh\u2581"]
        vocabulary = {piece: i for i, piece in enumerate(pieces)}
        inner = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
        inner.decoder = decoders.Sequence(
            [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
        )
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    inner.save(str(file))
    return JsonTokenizer(file)


@given(text=TEXTS)
def test_pieces_are_whole_characters_and_together_the_text(tokenizer, text: str) -> None:
    tokens = tokenizer.encode(text)
    whole = tokenizer.decode(tokens)
    stream = TextStream(tokenizer)
    pieces = []
    for token in tokens:
        pieces.append(stream.push(token))
        assert whole.startswith("".join(pieces))
        assert stream.text == "".join(pieces)
    if "\ufffd" not in whole:
        assert "\ufffd" not in "".join(pieces)
        assert "".join(pieces) == whole, "nothing is held back that is complete"
    assert "".join(pieces) + stream.finish() == whole
    assert stream.tokens == tokens


@given(
    text=st.text("abcé ", max_size=30), stops=st.lists(st.text("abcé ", min_size=1, max_size=4), max_size=3)
)
def test_it_ends_before_the_first_of_the_texts(text: str, stops: list[str]) -> None:
    tokenizer = Bytes()
    stream, said = TextStream(tokenizer, stops), ""
    for token in tokenizer.encode(text):
        said += stream.push(token)
        if stream.ended:
            break
    said += stream.finish()
    firsts = [text.find(stop) for stop in stops if stop in text]
    if not firsts:
        assert said == text and not stream.ended
    else:
        assert stream.ended
        ends = [min(b for b in range(len(text) + 1) if any(s in text[:b] for s in stops))]
        seen = text[: ends[0]]
        assert said == seen[: min(seen.find(stop) for stop in stops if stop in seen)]


def test_what_may_begin_a_stop_waits() -> None:
    stream = TextStream(Bytes(), ["\n\n"])
    assert [stream.push(byte) for byte in b"a\nb\n"] == ["a", "", "\nb", ""]
    assert stream.push(ord("\n")) == "" and stream.ended
    assert stream.finish() == "" and stream.text == "a\nb"


def test_a_character_that_stays_in_pieces_comes_at_the_end() -> None:
    stream = TextStream(Bytes())
    euro = "€".encode()
    assert [stream.push(byte) for byte in (*euro, *euro[:2])] == ["", "", "€", "", ""]
    assert stream.finish() == "\ufffd"
