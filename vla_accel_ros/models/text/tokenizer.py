"""Words to token ids and back, from the file that lies in the checkpoint folder.

Two file formats are in the field: `tokenizer.json` (Hugging Face tokenizers; preferred, one small dependency)
and sentencepiece's `tokenizer.model` (PaliGemma's original; needs the package sentencepiece). Special tokens
are never taken from the text, and the beginning-of-sequence token is added only where the prompt format says
so.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from vla_accel_ros.models.checkpoints.shards import inside
from vla_accel_ros.models.processing.norm_stats import check_bytes

PLACES = (
    "tokenizer.json",
    "tokenizer/tokenizer.json",
    "tokenizer.model",
    "tokenizer/tokenizer.model",
    "paligemma_tokenizer.model",
)
"""Where a folder has it, in order of preference: beside the weights, in a folder of its own, or as the file
that openpi fetches."""
MOST_BYTES = 64 << 20
"""Of a tokeniser's file; Gemma's of 262,144 tokens has 33 MB."""
BOS_NAMES = ("<bos>", "<s>")
EOS_NAMES = ("<eos>", "</s>")


class Tokenizer(Protocol):
    """What a policy needs of a tokeniser. size: number of ids; eos: the id that ends a text, or None."""

    size: int
    eos: int | None

    def encode(self, text: str, bos: bool = False) -> list[int]:
        """Ids of the text, after the beginning-of-sequence id if asked for."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of the ids, special ones left out."""


class JsonTokenizer:
    """A `tokenizer.json` of the tokenizers library."""

    def __init__(self, path: Path) -> None:
        import tokenizers

        try:
            self._inner: Any = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise ValueError(f"{path} is not a readable tokenizer.json ({error}); copy it again.") from error
        self._inner.no_padding()
        self._inner.no_truncation()
        self._inner.encode_special_tokens = True  # as the text that they are
        self.size: int = max(self._inner.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.eos: int | None = self._first(EOS_NAMES)
        self._bos = self._first(BOS_NAMES)
        self._path = path

    def encode(self, text: str, bos: bool = False) -> list[int]:
        """Ids of the text. Raises ValueError if bos is asked for and the vocabulary has none."""
        ids: list[int] = self._inner.encode(text, add_special_tokens=False).ids
        if not bos:
            return ids
        if self._bos is None:
            raise ValueError(f"{self._path} has none of the tokens {BOS_NAMES}; add <bos> to its vocabulary.")
        return [self._bos, *ids]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of the ids, special ones left out."""
        return str(self._inner.decode(list(tokens), skip_special_tokens=True))

    def _first(self, names: Sequence[str]) -> int | None:
        return next((id_ for name in names if (id_ := self._inner.token_to_id(name)) is not None), None)


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
        self.eos: int | None = self._inner.eos_id() if self._inner.eos_id() >= 0 else None

    def encode(self, text: str, bos: bool = False) -> list[int]:
        """Ids of the text."""
        return list(self._inner.encode(text, add_bos=bos))

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of the ids."""
        return str(self._inner.decode(list(tokens)))


def load_tokenizer(folder: Path, vocab: int) -> Tokenizer:
    """The tokeniser of a folder. Raises ValueError if there is none or it has more than `vocab` ids."""
    path = next((folder / name for name in PLACES if (folder / name).is_file()), None)
    if path is None:
        raise ValueError(
            f"{folder} has no tokenizer.json and no tokenizer.model; copy the one it was trained with."
        )
    path = inside(folder, path)
    check_bytes(path, MOST_BYTES)
    tokenizer: Tokenizer = JsonTokenizer(path) if path.suffix == ".json" else SentencePieceTokenizer(path)
    if tokenizer.size > vocab:
        raise ValueError(
            f"{path} has {tokenizer.size} ids but the model embeds {vocab}; copy the one it was trained with."
        )
    return tokenizer
