"""How much text fits into a frame: tokens are made in the time that actions leave over.

Action never waits for text: the frame is served first, and a token begins only if it can be expected to end,
with a margin, before the next frame is due. The expectation rises at once with a token that took longer and
falls slowly, because a token too many delays a robot and one too few a sentence. It is asked again before
every token: so a wrong expectation costs at most the token it was wrong about. A token that is made though
there is no time for it is noted too, or one slow token would be the expectation for ever.
"""

from __future__ import annotations

from collections.abc import Callable

FORGET = 0.05
"""Weight of a token that took less than expected."""


class Slack:
    """token_s: seconds of one token's forward, measured at the start or guessed; margin_s: kept free before
    the next frame; most: tokens in one frame at most, however long it is.

    Raises ValueError for numbers that cannot be.
    """

    def __init__(self, token_s: float, margin_s: float = 0.001, most: int = 32) -> None:
        if not 0 < token_s < float("inf") or not 0 <= margin_s < float("inf") or most < 0:
            raise ValueError(
                f"token_s is {token_s}, margin_s {margin_s}, most {most}: give a positive number of seconds, "
                "and others that are not negative."
            )
        self.token_s, self.margin_s, self.most = token_s, margin_s, most

    def note(self, token_s: float) -> None:
        """A token took so long."""
        weight = 1.0 if token_s > self.token_s else FORGET
        self.token_s += weight * (token_s - self.token_s)

    def tokens(self, left_s: float) -> int:
        """How many fit if the next frame is due in left_s."""
        return max(0, min(self.most, int(min(self.most, (left_s - self.margin_s) / self.token_s))))


def fill(
    slack: Slack,
    advance: Callable[[], object],
    wanted: Callable[[], bool],
    due_s: float,
    clock: Callable[[], float],
) -> int:
    """Advance texts by one token at a time until the next frame is near; returns how often.

    wanted: whether any text is under way and may go on; it may wait, which is not a token's time. due_s: when
    the next frame is due, by clock.
    """
    done = 0
    while done < slack.most and wanted():
        begin = clock()
        if not slack.tokens(due_s - begin):
            break
        advance()
        slack.note(clock() - begin)
        done += 1
    return done
