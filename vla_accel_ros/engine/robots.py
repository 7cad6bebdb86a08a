"""Whom one engine serves: a network, and for each robot the statistics around it and its step time.

A robot is known by its name; its `Embodiment` is what differs between robots that share the weights. A frame
is computed for the embodiment that its robot has then, and keeps it (kv.pool.Prefix): whatever comes of
that frame is in the same units, also if the robot is described anew meanwhile. As long as no robot is
described, every name is served by the engine's own policy. From then on a name that is not known is refused:
the statistics of the wrong robot move a robot to the wrong place without any error.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from vla_accel_ros.models.policies import FLOW, AnyPolicy


@dataclass(frozen=True)
class Embodiment:
    """What is a robot's own. policy: the engine's network between this robot's statistics, see
    models.checkpoints.checkpoint.with_statistics; its number of joints may be another. step_dt_s: seconds
    between two of its actions.

    Raises ValueError for a time that cannot be.
    """

    policy: AnyPolicy
    step_dt_s: float

    def __post_init__(self) -> None:
        if not 0 < self.step_dt_s < float("inf"):
            raise ValueError(f"step_dt_s is {self.step_dt_s}; give the time between two actions in seconds.")


class Robots:
    """The robots of one engine, by name. Safe to use from several threads, also while the engine runs.

    own: of the name "", and of every name as long as no robot was described. given: robots that are known
    from the start. A policy that acts by tokens needs room for the tokens of an action, so a robot with more
    of them than all of these cannot be added later.
    Raises ValueError as `add` does.
    """

    def __init__(self, own: Embodiment, given: Mapping[str, Embodiment] | None = None) -> None:
        self.own, self._lock = own, threading.Lock()
        self._known: dict[str, Embodiment] = {}
        self._several = False
        given = given or {}
        joints = [own.policy.joints, *(one.policy.joints for one in given.values())]
        self.most_joints = max(joints)
        for name, embodiment in given.items():
            self.add(name, embodiment)

    @property
    def names(self) -> tuple[str, ...]:
        """Of those that were described, in that order."""
        return tuple(self._known)

    @property
    def joints(self) -> frozenset[int]:
        """The numbers that an action has, of any of them."""
        return frozenset(one.policy.joints for one in (self.own, *self._known.values()))

    def add(self, name: str, embodiment: Embodiment) -> None:
        """Describe a robot, or describe it anew: frames that are observed from now on are computed so.

        Raises ValueError for the name "", another network than the engine's, or more tokens than there is
        room for.
        """
        if not name:
            raise ValueError("a robot without a name is served by the engine's own policy; name it.")
        self._check(name, embodiment.policy)
        with self._lock:
            self._known, self._several = {**self._known, name: embodiment}, True

    def remove(self, name: str) -> None:
        """Serve a robot no longer: its frames are refused. Nothing happens to those that were observed."""
        with self._lock:
            self._known = {other: one for other, one in self._known.items() if other != name}

    def of(self, name: str) -> Embodiment:
        """A robot's. Raises ValueError for one that is not known here, if any is."""
        found = self._known.get(name)
        if found is not None:
            return found
        if name and self._several:
            raise ValueError(
                f"the robot '{name}' is not known here, but {list(self.names)} are, with statistics of their "
                "own: add it with its own, too."
            )
        return self.own

    def has_room(self, policy: AnyPolicy) -> bool:
        """Whether there is room for the tokens of an action; chunks that are denoised always have it."""
        return policy.acts == FLOW or policy.joints <= self.most_joints

    def _check(self, name: str, policy: AnyPolicy) -> None:
        own = self.own.policy
        if policy.model is not own.model:
            raise ValueError(
                f"the policy of the robot '{name}' has a network of its own; make it of the engine's policy "
                "by with_statistics."
            )
        for what in ("time_rule", "trained_delay", "pixel_rule"):
            theirs, ours = getattr(policy, what), getattr(own, what)
            if theirs != ours or (what == "pixel_rule" and not torch.equal(theirs.levels, ours.levels)):
                raise ValueError(
                    f"{what} of the robot '{name}' is {theirs}, the engine's is {ours}; a network has one, "
                    "so load both from the same checkpoint."
                )
        if not self.has_room(policy):
            raise ValueError(
                f"an action of the robot '{name}' has {policy.joints} tokens, but there is room for "
                f"{self.most_joints}; give the engine this robot when it is made."
            )
