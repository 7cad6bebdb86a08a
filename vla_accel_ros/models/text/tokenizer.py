"""Convert text to token ids and back, whole or streamed, with the tokenizer file in the checkpoint folder.

Two file formats are in use: `tokenizer.json` (Hugging Face tokenizers; preferred, one small dependency) and
sentencepiece's `tokenizer.model` (PaliGemma's original; needs the package sentencepiece). Special tokens in a
text are encoded as plain text, and the beginning-of-sequence token is added only where the prompt format has
it.
"""

from __future__ import annotations

import json
import reprlib
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

from vla_accel_ros.models.checkpoints.shards import inside
from vla_accel_ros.models.json_file import check_bytes, read_json

PLACES = (
    "tokenizer.json",
    "tokenizer/tokenizer.json",
    "tokenizer.model",
    "tokenizer/tokenizer.model",
    "paligemma_tokenizer.model",
)
"""File names in order of preference: beside the weights, in a folder of its own, or as openpi fetches it."""
MOST_BYTES = 64 << 20
"""Largest tokenizer file; Gemma's with 262,144 tokens has 33 MB."""
BOS_NAMES = ("<bos>", "<s>")
EOS_NAMES = ("<eos>", "</s>")
INCOMPLETE = "\ufffd"
MOST_KEPT = 64
"""Texts whose ids are kept: most frames have the instruction of the one before."""


_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
"""How Qwen splits a text before its merges, as its tokenizer.json says."""
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
_SPECIAL = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
_SPLIT = {"type": "Split", "pattern": {"Regex": _WORDS}, "behavior": "Isolated", "invert": False}
_QWEN = {
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [_SPLIT, _BYTES]},
    "decoder": _BYTES,
}


class Tokenizer(Protocol):
    """The tokenizer methods that a policy needs. size: one more than the largest id that a prompt may get.
    words: ids without those that were added to the vocabulary. eos: the id that ends a text, or None. begins:
    whether the tokenizer's own template begins a text with the beginning-of-sequence id."""

    size: int
    words: int
    eos: int | None
    begins: bool

    def encode(self, text: str, bos: bool = False) -> list[int]:
        """Return the ids of the text, after the beginning-of-sequence id if `bos`."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of the ids, without special ones."""


def read_tokenizer(path: Path, text: str | None = None) -> Any:
    """Return the tokenizers library's tokenizer of a `tokenizer.json`. text: its contents, None = those of
    the file. Raises ValueError if they are malformed."""
    import tokenizers

    try:
        text = path.read_bytes().decode("utf-8-sig") if text is None else text
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exception
        raise ValueError(f"{path} is not a readable tokenizer.json ({error}); copy it again.") from error


class JsonTokenizer:
    """A `tokenizer.json` of the tokenizers library. rows: that the model embeds; a text with other ids is
    refused. text: its contents, None = those of the file."""

    def __init__(self, path: Path, rows: int = sys.maxsize, text: str | None = None) -> None:
        self._inner = read_tokenizer(path, text)
        self._inner.no_padding()
        self._inner.no_truncation()
        self._inner.encode_special_tokens = True  # encode special tokens as plain text
        self.eos: int | None = self._first(EOS_NAMES)
        self._bos = self._first(BOS_NAMES)
        added = self._inner.get_added_tokens_decoder().items()
        never = {id_ for id_, token in added if token.special and id_ != self._bos}
        ids = self._inner.get_vocab(with_added_tokens=True).values()
        self.size: int = 1 + max((id_ for id_ in ids if id_ not in never), default=-1)
        self.words: int = self._inner.get_vocab_size(with_added_tokens=False)
        self.begins = self._bos in self._inner.encode("", add_special_tokens=True).ids
        self._rows = rows
        self._path = path
        self._ids = lru_cache(MOST_KEPT)(self._encoded)

    def encode(self, text: str, bos: bool = False) -> list[int]:
        """Return the ids of the text. Raises ValueError if `bos` is asked for and the vocabulary has none, or
        if the text has something that the vocabulary does not know."""
        ids = self._ids(text)
        if not bos:
            return [*ids]
        if self._bos is None:
            raise ValueError(f"{self._path} has none of the tokens {BOS_NAMES}; add <bos> to its vocabulary.")
        return [self._bos, *ids]

    def _encoded(self, text: str) -> tuple[int, ...]:
        try:
            ids = tuple(self._inner.encode(text, add_special_tokens=False).ids)
        except Exception as error:  # the library raises bare Exception
            raise ValueError(
                f"{self._path} cannot encode {reprlib.repr(text)} ({error}); copy that of the training."
            ) from error
        if max(ids, default=0) >= self._rows:
            raise ValueError(
                f"{self._path} encodes {reprlib.repr(text)} with the id {max(ids)}, but the model embeds "
                f"{self._rows}; leave that word out."
            )
        return ids

    def id_of(self, token: str) -> int | None:
        """Return the id of a token, also a special one; None if there is none, or the model embeds none."""
        id_ = self._inner.token_to_id(token)
        return None if id_ is None or id_ >= self._rows else int(id_)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of the ids, without special ones."""
        return str(self._inner.decode(list(tokens), skip_special_tokens=True))

    def _first(self, names: Sequence[str]) -> int | None:
        return next((id_ for name in names if (id_ := self._inner.token_to_id(name)) is not None), None)


_T = TypeVar("_T", bound=Tokenizer)


class SentencePieceTokenizer:
    """A sentencepiece `tokenizer.model`."""

    def __init__(self, path: Path) -> None:
        try:
            import sentencepiece
        except ImportError as error:
            raise ValueError(
                f"{path} needs the package sentencepiece; install it or put a tokenizer.json beside it."
            ) from error
        try:
            self._inner: Any = sentencepiece.SentencePieceProcessor(model_file=str(path))
        except (OSError, RuntimeError) as error:
            raise ValueError(
                f"{path} is not a readable sentencepiece model ({error}); copy it again."
            ) from error
        self.size: int = self._inner.vocab_size()
        self.words, self.begins = self.size, True
        self.eos: int | None = self._inner.eos_id() if self._inner.eos_id() >= 0 else None
        self._ids = lru_cache(MOST_KEPT)(self._encoded)

    def encode(self, text: str, bos: bool = False) -> list[int]:
        """Return the ids of the text."""
        return [*self._ids(text, bos)]

    def _encoded(self, text: str, bos: bool) -> tuple[int, ...]:
        return tuple(self._inner.encode(text, add_bos=bos))

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of the ids; those of a model's padding, beyond the file's, have none."""
        return str(self._inner.decode([token for token in tokens if token < self.size]))


def load_tokenizer(folder: Path, vocab: int) -> Tokenizer:
    """Return the tokenizer of a folder: the first of PLACES that fits.

    Special tokens that a text never becomes, such as PaliGemma's `<image>`, may lie beyond `vocab`. Raises
    ValueError if there is no file, or for the first one if none is readable and within `vocab` ids.
    """
    paths = [folder / name for name in PLACES if (folder / name).is_file()]
    errors: list[ValueError] = []
    for path in paths:
        try:
            return _fitting(inside(folder, path), vocab)
        except ValueError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    raise ValueError(
        f"{folder} has no tokenizer.json and no tokenizer.model; copy the one it was trained with: for pi0 "
        "and pi0.5 google/paligemma-3b-pt-224's tokenizer.json or big_vision's paligemma_tokenizer.model."
    )


def load_qwen_tokenizer(folder: Path, vocab: int) -> JsonTokenizer:
    """Return the tokenizer of a Qwen folder: `tokenizer.json`, or the older `vocab.json`, `merges.txt` and
    `added_tokens.json`. Raises ValueError if a file is missing, broken, or has more than `vocab` ids."""
    path, parts = folder / "tokenizer.json", [folder / name for name in ("vocab.json", "merges.txt")]
    if path.is_file():
        tokenizer = _fitting(path, vocab)
        assert isinstance(tokenizer, JsonTokenizer)
        return tokenizer
    absent = [part.name for part in parts if not part.is_file()]
    if absent:
        raise ValueError(f"{folder} has no tokenizer.json and no {' and no '.join(absent)}; copy them again.")
    check_bytes(parts[1], MOST_BYTES)
    added = folder / "added_tokens.json"
    model = {"type": "BPE", "vocab": read_json(parts[0], MOST_BYTES), "merges": _merges(parts[1])}
    tokens = [
        {"id": id_, "content": token, **_SPECIAL}
        for token, id_ in (read_json(added) if added.is_file() else {}).items()
    ]
    text = json.dumps({"version": "1.0", "added_tokens": tokens, "model": model, **_QWEN})
    return _within(JsonTokenizer(parts[0], vocab, text), parts[0], vocab)


def _merges(path: Path) -> list[str]:
    lines = path.read_text("utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#version")]


def _fitting(path: Path, vocab: int) -> Tokenizer:
    check_bytes(path, MOST_BYTES)
    is_json = path.suffix == ".json"
    return _within(JsonTokenizer(path, vocab) if is_json else SentencePieceTokenizer(path), path, vocab)


def _within(tokenizer: _T, path: Path, vocab: int) -> _T:
    if tokenizer.size > vocab:
        raise ValueError(
            f"{path} has {tokenizer.size} ids but the model embeds {vocab}; copy the one it was trained with."
        )
    return tokenizer


class TextStream:
    """Streams text from tokens, in pieces that are never taken back.

    A character may need several tokens, and until its last byte arrives the decoded text ends in a
    replacement character. That is held back, and so is anything that may begin a stop text. The output is
    always a prefix of the text of all tokens.

    tokens: pushed so far. text: output so far. ended: one of the `stop` texts has come; neither it nor
    anything after it is output.

    Raises ValueError if a stop is empty or not a string.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        if isinstance(stop, str) or not all(isinstance(text, str) for text in stop):
            raise ValueError(f"stop is {stop!r}; give a list of strings.")
        if not all(stop):
            raise ValueError("stop has an empty text, which ends every answer at once; leave it out.")
        self.tokens: list[int] = []
        self.text = ""
        self.ended = False
        self._tokenizer, self._stop = tokenizer, tuple(stop)

    def push(self, token: int) -> str:
        """Add a token; return the text that became certain, often ""."""
        self.tokens.append(token)
        whole = self._tokenizer.decode(self.tokens)
        ends = [end for stop in self._stop if (end := whole.find(stop)) >= 0]
        if ends:
            self.ended = True
            return self._give(whole[: min(ends)])
        whole = whole.rstrip(INCOMPLETE)
        return self._give(whole[: len(whole) - self._begun(whole)])

    def finish(self) -> str:
        """Return the rest when no more tokens come, even an incomplete character."""
        return "" if self.ended else self._give(self._tokenizer.decode(self.tokens))

    def _begun(self, whole: str) -> int:
        """Return how many of the last characters may begin a stop."""
        starts = (stop[:length] for stop in self._stop for length in range(1, len(stop)))
        return max((len(start) for start in starts if whole.endswith(start)), default=0)

    def _give(self, text: str) -> str:
        if not text.startswith(self.text):  # the decoder changed earlier text: wait until it agrees
            return ""
        piece, self.text = text[len(self.text) :], text
        return piece
