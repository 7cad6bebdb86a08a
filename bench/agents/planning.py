"""Finds the best splits for measured durations: a Markov chain, solved exactly.

The state is the number of waiting screens, the number of open answers, and whether a screen is encoded. A
decision is made when encode or prefill begins: its split, or a pause of decoding. Arrivals are Poisson, and
an answer ends at each step with the same probability, so its mean length is right (real lengths vary less).
`latency_s` is the mean latency of a rule, by Little's law from the mean number of requests. `best` finds the
rule with the least latency (policy iteration), a bound for every rule that decides at these moments from
these numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from agents.durations import BESIDE_BATCH, Durations, nearest
from agents.rules import PAUSED, SCREENS_FIRST, SHARED, Share, Table
from vla_accel_ros.engine.request import ENCODE, PREFILL

Floats = NDArray[np.float64]
Rule = Callable[[str, int, int], int]
"""Stage, screens in work or waiting, open answers -> the mode."""

ALONE = -3
"""A rule's mode: decode for a step beside nothing, while the screen waits."""
SCREENS, LOST_S = 28, 30.0
"""Most screens in a chain. Further ones are lost and cost as much as a latency of that length, so rules that
cannot keep up are bad; tables use states well below (`KNOWN`)."""
KNOWN = 18
STAGES = (ENCODE, PREFILL)
_ROUNDS = 30


@dataclass(frozen=True)
class _Action:
    """cost [states]: requests times seconds. then [states, states]: probabilities of the numbers of screens
    and answers when it ends. back: the phase then is that before."""

    takes_s: float
    cost: Floats
    then: Floats
    back: bool = False


class Chain:
    """durations: of the stages. rate_hz: of arrivals. tokens: mean of an answer. slots: most requests between
    the beginning of encode and the end of their answer."""

    def __init__(self, durations: Durations, rate_hz: float, tokens: float, slots: int) -> None:
        self.modes = (PAUSED, *sorted(durations.beside))
        self._slots, self._rate_hz, self._splits = slots, rate_hz, durations.splits
        self._shape = 2, SCREENS + 1, slots + 1
        ends = 1.0 / max(1.0, tokens - 1.0)  # the first token is the prefill's
        step_s = durations.decode_s[min(n for n in durations.decode_s if n >= min(BESIDE_BATCH, slots))]
        self._actions: list[dict[int, _Action]] = []
        for stage in STAGES:
            encodes = stage == ENCODE
            alone_s = durations.encode_s if encodes else durations.prefill_s
            actions = {PAUSED: self._action(alone_s, 0.0, ends, not encodes)}
            for mode, both in durations.beside.items():
                front_s = both.encode_s if encodes else both.prefill_s
                steps = front_s / (both.decode_in_encode_s if encodes else both.decode_in_prefill_s)
                actions[mode] = self._action(front_s, steps, ends, not encodes)
            alone = self._action(step_s, 1.0, ends, False)
            self._actions.append(actions | {ALONE: replace(alone, back=True)})

    def latency_s(self, rule: Rule) -> float:
        """Mean latency of a rule. ALONE is allowed only for schedulers with one lane."""
        return self._solve(self._all(rule))[0] / self._rate_hz

    def best(self) -> tuple[float, dict[str, Table]]:
        """Return the smallest mean latency over the measured modes, and the table of choices for each
        stage."""
        chosen = self._all(lambda *_: max(mode for mode in self.modes if mode <= 0))
        mean = math.inf
        for _ in range(_ROUNDS):
            mean, values = self._solve(chosen)
            better = self._improved(mean, values, chosen)
            if np.array_equal(better, chosen):
                break
            chosen = better
        tables = {
            stage: Table(tuple(tuple(map(int, row)) for row in chosen[at, 1 : KNOWN + 1, :-1]))
            for at, stage in enumerate(STAGES)
        }
        return mean / self._rate_hz, tables

    def _action(self, takes_s: float, steps: float, ends: float, prefills: bool) -> _Action:
        """steps: of decoding meanwhile. ends: the share of answers that end at a step. prefills: a screen is
        an answer then."""
        screens, answers = np.arange(SCREENS + 1), np.arange(self._slots + 1)
        chances = [math.exp(-self._rate_hz * takes_s)]
        for number in range(1, SCREENS + 1):
            chances.append(chances[-1] * self._rate_hz * takes_s / number)
        came = np.zeros((SCREENS + 1, SCREENS + 1))
        beyond = np.maximum(0, screens[:, None] + screens[None] - SCREENS)
        lost = beyond @ np.array(chances)
        for at in screens:
            came[at, at:] = chances[: SCREENS + 1 - at]
            came[at, SCREENS] += 1.0 - came[at].sum()
        stays = (1.0 - ends) ** steps if steps else 1.0
        left = np.array(
            [
                [math.comb(n, k) * stays**k * (1 - stays) ** (n - k) if k <= n else 0.0 for k in answers]
                for n in answers
            ]
        )
        if prefills:
            came = np.hstack([came[:, :1] + came[:, 1:2], came[:, 2:], np.zeros((SCREENS + 1, 1))])
            left = np.hstack(
                [np.zeros((self._slots + 1, 1)), left[:, :-2], left[:, -2:].sum(1, keepdims=True)]
            )
        open_for = (1 - stays) / -math.log(stays) if 0 < stays < 1 else stays
        cost = takes_s * ((screens + self._rate_hz * takes_s / 2)[:, None] + open_for * answers[None])
        cost += LOST_S * lost[:, None]
        return _Action(takes_s, cost.ravel(), np.kron(came, left))

    def _all(self, rule: Rule) -> NDArray[np.int64]:
        """Return the rule's mode in every state."""
        chosen = np.full(self._shape, ALONE, dtype=np.int64)
        for at, stage in enumerate(STAGES):
            for screens in range(1, SCREENS + 1):
                for answers in range(self._slots + 1):
                    if at == 1 or answers < self._slots:
                        mode = rule(stage, screens, answers)
                        if mode in (SHARED, SCREENS_FIRST) and not answers:
                            mode = PAUSED  # nothing is beside it
                        chosen[at, screens, answers] = nearest(mode, self._splits) if mode > 0 else mode
        return chosen

    def _solve(self, chosen: NDArray[np.int64]) -> tuple[float, Floats]:
        """Return the mean number of requests and the relative values [2, states] of fixed choices."""
        count = chosen[0].size
        matrix, cost, takes = np.zeros((2, count, 2, count)), np.zeros((2, count)), np.zeros((2, count))
        for at in (0, 1):
            for mode, action in self._actions[at].items():
                rows = np.flatnonzero(chosen[at] == mode)
                matrix[at, rows, at if action.back else 1 - at] = action.then[rows]
                cost[at, rows], takes[at, rows] = action.cost[rows], action.takes_s
        # Nobody is there: until somebody comes.
        matrix[0, 0], cost[0, 0], takes[0, 0] = 0.0, 0.0, 1.0 / self._rate_hz
        matrix[0, 0, 0, self._slots + 1] = 1.0
        # values = cost - mean * takes + matrix @ values, where the value of the empty system is 0.
        system = np.eye(2 * count) - matrix.reshape(2 * count, 2 * count)
        system[:, 0] = takes.ravel()
        solved = np.linalg.solve(system, cost.ravel())
        mean, solved[0] = float(solved[0]), 0.0
        values: Floats = np.asarray(solved, dtype=np.float64).reshape(2, count)
        return mean, values

    def _improved(self, mean: float, values: Floats, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        better = chosen.copy()
        for at in (0, 1):
            now = chosen[at].ravel()
            scores = np.stack([self._score(at, mode, mean, values) for mode in self.modes])
            free = now != ALONE
            kept = scores[np.searchsorted(self.modes, np.where(free, now, PAUSED)), np.arange(now.size)]
            gains = free & (scores.min(0) < kept - 1e-9)
            found = np.where(gains, np.array(self.modes)[scores.argmin(0)], now)
            better[at] = found.reshape(chosen[at].shape)
        return better

    def _score(self, at: int, mode: int, mean: float, values: Floats) -> Floats:
        action = self._actions[at][mode]
        return action.cost - mean * action.takes_s + action.then @ values[1 - at]


def of_shares(shares: Mapping[str, Share | Table]) -> Rule:
    """Return the choice of SideBySide."""
    return lambda stage, screens, answers: shares[stage].sms(screens, answers)


def prefill_first(limit: int) -> Rule:
    """Return the rule of one lane in which answers wait until more than `limit` are open."""
    return lambda stage, screens, answers: ALONE if answers > limit else PAUSED
