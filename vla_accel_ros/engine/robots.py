"""The robots that one engine serves: one network, and for each robot its statistics and step time.

A robot is known by its name; its `Embodiment` is what differs between robots that share the weights. A frame
is computed for the embodiment that its robot has at that time and keeps it (kv.prefixes.Prefix), so all
results of that frame have the same units, even if the robot is described again meanwhile. As long as no robot
is described, the engine's own policy serves every name. After that an unknown name is refused, because the
statistics of the wrong robot would move a robot to the wrong place without any error.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch

from vla_accel_ros.models.micro_requests import DECODE
from vla_accel_ros.models.policies import AnyPolicy, TokenPolicy


@dataclass(frozen=True)
class Embodiment:
    """What differs between robots of one network. policy: the engine's network with this robot's statistics,
    see models.checkpoints.checkpoint.with_statistics; its number of joints may differ. step_dt_s: seconds
    between two of its actions.

    Raises ValueError if step_dt_s is not positive and finite.
    """

    policy: AnyPolicy
    step_dt_s: float

    def __post_init__(self) -> None:
        if not 0 < self.step_dt_s < float("inf"):
            raise ValueError(f"step_dt_s is {self.step_dt_s}; give the time between two actions in seconds.")


def tokens_of(policy: AnyPolicy) -> int:
    """Most tokens in an action of a policy; 0 if it does not act by tokens."""
    return cast(TokenPolicy, policy).most_tokens if policy.chain.acts == DECODE else 0


class Robots:
    """The robots of one engine, by name. Safe to use from several threads, also while the engine runs.

    own: serves the name "", and every name as long as no robot was described. described: robots from the
    start. A policy that acts by tokens has room for the tokens of the longest action among these, so a robot
    with more joints cannot be added later. Raises ValueError as `add` does.
    """

    def __init__(self, own: Embodiment, described: Mapping[str, Embodiment] | None = None) -> None:
        self.own, self._lock = own, threading.Lock()
        self._known: dict[str, Embodiment] = {}
        self._several = False
        embodiments = described or {}
        self.most_tokens = max(tokens_of(embodiment.policy) for embodiment in (own, *embodiments.values()))
        for name, embodiment in embodiments.items():
            self.add(name, embodiment)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the described robots, in that order."""
        return tuple(self._known)

    @property
    def tokens(self) -> frozenset[int]:
        """The numbers of tokens in an action of all robots."""
        return frozenset(tokens_of(embodiment.policy) for embodiment in (self.own, *self._known.values()))

    def add(self, name: str, embodiment: Embodiment) -> None:
        """Describe a robot, or describe it again; this applies to frames that are observed from now on.

        Raises ValueError if the name is "", if the policy's network is not the engine's, if its time rule,
        trained delay or pixel rule differs, or if an action has more tokens than there is room for.
        """
        if not name:
            raise ValueError("a robot without a name is served by the engine's own policy; name it.")
        self._check(name, embodiment.policy)
        with self._lock:
            self._known, self._several = {**self._known, name: embodiment}, True

    def remove(self, name: str) -> None:
        """Stop serving a robot: its new frames are refused. Frames that were observed are not affected."""
        with self._lock:
            self._known = {other: embodiment for other, embodiment in self._known.items() if other != name}

    def of(self, name: str) -> Embodiment:
        """The embodiment of a robot. Raises ValueError if robots were described and this one is unknown."""
        embodiment = self._known.get(name)
        if embodiment is not None:
            return embodiment
        if name and self._several:
            raise ValueError(
                f"the robot '{name}' is not known here, but {list(self.names)} are, with statistics of their "
                "own: add it with its own, too."
            )
        return self.own

    def has_room(self, policy: AnyPolicy) -> bool:
        """Whether an action's tokens fit; always true for chunks that are made otherwise."""
        return tokens_of(policy) <= self.most_tokens

    def _check(self, name: str, policy: AnyPolicy) -> None:
        shared = self.own.policy
        if policy.model is not shared.model:
            raise ValueError(
                f"the policy of the robot '{name}' has a network of its own; make it of the engine's policy "
                "by with_statistics."
            )
        for field in ("time_rule", "trained_delay", "pixel_rule"):
            value, expected = getattr(policy, field), getattr(shared, field)
            if value != expected or (
                field == "pixel_rule" and not torch.equal(value.levels, expected.levels)
            ):
                raise ValueError(
                    f"{field} of the robot '{name}' is {value}, the engine's is {expected}; a network has "
                    "one, so load both from the same checkpoint."
                )
        if not self.has_room(policy):
            raise ValueError(
                f"an action of the robot '{name}' has {tokens_of(policy)} tokens, but there is room for "
                f"{self.most_tokens}; give the engine this robot when it is made."
            )
