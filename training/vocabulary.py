"""The word-level tokenizer of the demo policy.

The demo uses a few dozen words, so a token is one word, one punctuation mark or one number. It is an ordinary
`tokenizer.json` of the tokenizers library, loaded like any other checkpoint's, with Gemma's special ids (pad
0, eos 1, bos 2, unk 3). Numbers 0..255 are the state bins of the pi0.5 prompt.
"""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from vla_accel_ros.models.pi.model import Pi

PAD, EOS, BOS, UNK = 0, 1, 2, 3
SPECIALS = ("<pad>", "<eos>", "<bos>", "<unk>")
STATE_BINS = 256
WORDS = (
    "Task", "State", "Action", ":", ",", ";", ".", "?", "\n",
    "reach", "put", "follow", "the", "on", "block", "pad", "to", "a", "an", "and", "of", "is", "it",
    "red", "green", "blue", "yellow", "white", "black", "orange", "purple", "cyan", "grey",
    "magenta", "pink",
    "moving", "holding", "following", "done", "reaching", "placing", "releasing", "waiting", "not",
    "nothing",
    "at", "above", "over", "with", "in", "from", "up", "down", "left", "right", "hold", "stop",
    "home", "what",
)  # fmt: skip
FIRST_BIN = len(SPECIALS) + len(WORDS)


def build() -> Tokenizer:
    """Return the tokenizer: specials, words, then the state bins `0`..`255` from id FIRST_BIN on."""
    pieces = [*SPECIALS, *WORDS, *(str(n) for n in range(STATE_BINS))]
    tokenizer = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token="<unk>"))
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(
        Regex(r"\d+|[A-Za-z]+|\n|[^\sA-Za-z\d]"), behavior="removed", invert=True
    )
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    return tokenizer


def save(folder: Path) -> None:
    """Write `tokenizer.json` into the checkpoint folder."""
    build().save(str(folder / "tokenizer.json"))


def spread_bins(model: Pi, frequencies: int = 8) -> None:
    """Initialise the state bins' embeddings as a smooth function of their value, so that similar joint angles
    start alike.

    With independent rows the policy would have to learn 256 unrelated words for one angle. The rows stay
    trainable.
    """
    table = model.language_model.embed_tokens.weight
    value = torch.arange(STATE_BINS, dtype=torch.float32) / STATE_BINS
    waves = 2.0 ** torch.arange(frequencies) * torch.pi * value[:, None]
    features = torch.cat((waves.sin(), waves.cos()), 1)
    mixing = torch.randn(features.shape[1], table.shape[1], generator=torch.Generator().manual_seed(0))
    smooth = features @ mixing / features.shape[1] ** 0.5
    with torch.no_grad():
        table[FIRST_BIN : FIRST_BIN + STATE_BINS] = smooth * table.std()
