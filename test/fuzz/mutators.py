"""Ways in which foreign bytes and texts go wrong: by accident in a bit, and on purpose where it hurts.

Everything is drawn from the given random.Random, so that a case is its seed.
"""

from __future__ import annotations

import random
import re

LENGTHS = (0, 1, 2, 3, 4, 7, 255, 256, 65_535, 2**16, 2**31 - 1, 2**31, 2**32 - 1)
WORDS = """
~ 0 -0.0 1e999 -1 .inf -.inf .nan 1_0 0x10 1e-320 99999999999999999999 true no null ' [ ] { } &a *a "
!!python/object:os.system a/b /abs ../up ü 2026-11-21 12:30:45 << ? [[[[[[[[[[ rad deg m delta ring
servo_twist forward_command twist
"""
SCALARS = (*WORDS.split(), "", "!!binary x", "[1, 2]", "{a: b}", "\t", "\x00", "\u2028", "x" * 300)


def damaged(chance: random.Random, good: bytes) -> bytes:
    """The bytes with one to five things done to them."""
    data = bytearray(good)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        _damage(chance, data)
    return bytes(data)


def _damage(chance: random.Random, data: bytearray) -> None:
    kind, size = chance.randrange(9), len(data)
    at = chance.randrange(size) if size else 0
    length = chance.choice((1, 1, 2, 4, 8, 33))
    if kind == 0 and size:
        data[at] ^= 1 << chance.randrange(8)
    elif kind == 1:
        data[at : at + length] = chance.randbytes(min(length, size - at))
    elif kind == 2:
        data[at : at + length] = chance.choice((b"\0", b"\xff", b"\x80")) * min(length, size - at)
    elif kind == 3:  # a number of the header, or a length that something is allocated by
        word = 4 * chance.randrange(max(1, min(size, 64) // 4))
        number = chance.choice(LENGTHS) if chance.random() < 0.7 else chance.randrange(2**32)
        data[word : word + 4] = number.to_bytes(4, chance.choice(("little", "big")))
    elif kind == 4:
        del data[at:]
    elif kind == 5:
        del data[at : at + length]
    elif kind == 6:
        data[at:at] = chance.randbytes(length)
    elif kind == 7:
        data[at:at] = data[at : at + length] * chance.choice((1, 2, 20))
    else:
        data += chance.randbytes(length)


def misspelt(chance: random.Random, good: str) -> str:
    """A YAML text with one to four things done to its lines, values and letters."""
    lines = good.split("\n")
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        _misspell(chance, lines)
    return "\n".join(lines)


def _misspell(chance: random.Random, lines: list[str]) -> None:
    kind, at = chance.randrange(8), chance.randrange(len(lines))
    line = lines[at]
    words = list(re.finditer(r"[^\s{}\[\],:]+", line))
    if kind <= 2 and words:
        word = chance.choice(words)
        new = (
            chance.choice(SCALARS) if kind < 2 else str(chance.choice((1, -1)) * 10 ** chance.uniform(-9, 9))
        )
        lines[at] = line[: word.start()] + new + line[word.end() :]
    elif kind == 3:
        del lines[at]
        lines.append("")
    elif kind == 4:
        lines.insert(chance.randrange(len(lines)), line)
    elif kind == 5:
        lines[at] = chance.choice((" ", "  ", "\t", "- ")) + line if chance.random() < 0.6 else line.lstrip()
    elif kind == 6 and line:
        place = chance.randrange(len(line))
        lines[at] = line[:place] + chance.choice("{}[],:#&*!|>'\"%@`-? \t\x00\x07\ufeff") + line[place + 1 :]
    else:
        other = chance.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
