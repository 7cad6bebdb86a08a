"""Every option of an engine, with its default, in one place.

Node parameters, command-line options and the record of a session derive from this dataclass, so a default is
changed here alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vla_accel_ros.models.flow.noise import FRESH, KINDS
from vla_accel_ros.models.flow.solver import EULER, SOLVERS

SEQUENTIAL, PIPELINED, SPECULATIVE, AUTO = "sequential", "pipelined", "speculative", "auto"
TOKEN_MODES = (SEQUENTIAL, PIPELINED, SPECULATIVE, AUTO)
ONE, TEXT_APART, ACTIONS_APART, ALL_APART = "one", "text", "two", "three"
LANES = (ONE, TEXT_APART, ACTIONS_APART, ALL_APART)
STREAM, FRESH_FIRST = "stream", "fresh"
STAGGERING = (STREAM, FRESH_FIRST)
RATE, FRESHNESS = "rate", "freshness"
PREFERENCES = (RATE, FRESHNESS)
EXACT, W8A8 = "exact", "w8a8"
RESIDENT, VISION = "none", "vision"
LEAST = {
    "slots": 1,
    "steps": 1,
    "seed": 0,
    "answers": 1,
    "answer_tokens": 1,
    "prefill_groups": 1,
    "text_groups": 1,
    "frames_together": 1,
}
"""Smallest value allowed for each whole-number option."""
MOST_SEATS = 64
"""Most chunks that are denoised at once."""
MOST_TEXT = 0.5
"""Largest share of a lane's time that text may get."""
NO_PARTITION = "none"


@dataclass(frozen=True, order=True)
class Split:
    """Numbers of multiprocessors: for actions, and for frames and text."""

    actions: int
    rest: int

    @classmethod
    def of(cls, word: str) -> Split:
        """Parses "A:B". Raises ValueError for anything else."""
        found = re.fullmatch(r"([1-9]\d{0,5}):([1-9]\d{0,5})", word, re.ASCII)
        if found is None:
            raise ValueError(
                f"partition is '{word}'; use '{NO_PARTITION}', '{AUTO}', or multiprocessors of actions "
                "and of the rest, such as '32:100'."
            )
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.actions}:{self.rest}"


def offload_share(offload: str) -> float:
    """The share of the vision towers' layers that an offload option streams: 0 for "none", 1 for "vision",
    SHARE for "vision:SHARE". Raises ValueError for anything else."""
    if offload == RESIDENT:
        return 0.0
    tower, colon, number = offload.partition(":")
    try:
        share = float(number) if colon else 1.0
    except ValueError:
        share = 0.0
    if tower != VISION or not 0 < share <= 1:
        raise ValueError(
            f"offload is '{offload}'; use {RESIDENT}, {VISION}, or {VISION} with a share of its layers, "
            f"above 0 and up to 1, such as {VISION}:0.25."
        )
    return share


@dataclass(frozen=True)
class EngineConfig:
    """How an engine runs a policy.

    slots: number of prefixes alive at once, at least 4: the newest, the one being computed, one for an action
        and one for text. Staggered chunks need one each and 3 more. Each further answer needs one more;
        without it a stream's question waits. Frames that share forwards get what they need. Each robot given
        to the constructor adds one; a caller that adds robots later must allow one for each.
    steps, time_rule: flow sampling, see models.flow.sampling; "auto" takes the rule that the policy was
        trained with. solver: "euler", as policies are trained to be sampled, or "ab2", second-order
        Adams-Bashforth, as accurate with about half the steps: models.flow.solver and docs/lab/solvers.md.
    seed, noise: the initial noise of chunks, see models.flow.noise: "fresh", a function of (seed, request)
        alone, or "coherent", a function of (seed, time of each action): smaller seams, but no less jerk
        (docs/lab/performance.md).
    step_dt_s: seconds between two actions of a chunk, for robots without their own.
    answers, answer_tokens: most answers written at once, and most tokens in one.
    fast: compute with captured stages and, where the model family has them, fused kernels.
    precision: of the captured stages, see engine.stages.precision; all but "exact" change the actions.
    calibration: file of `vla calibrate` for precision "w8a8" or "w8a8-int4"; "" = none: columns are not
        smoothed.
    keep_exact: False frees the exact weights of what the stages hold in fewer bits; only such stages can then
        compute the policy, see engine.stages.dropping and docs/lab/plan.md.
    offload: "none", "vision" or "vision:SHARE": all layers of the vision towers, or a share, keep their
        weights in page-locked host memory; every frame copies them to the GPU while other layers compute. The
        results are the same bits; see docs/lab/offload.md.
    staggered: number of chunks denoised at once, each at its own step; 0 = whole chunks. With up to `steps`
        seats one chunk begins in each step; with more seats, several do.
    staggering: "stream": every chunk takes a seat; "fresh": the first chunk of a frame is denoised whole and
        before the staggered ones, which are further chunks of the frame.
    seats_by_load: a step of staggered chunks computes the fewest of 1, 2, 4, ... and all seats that hold its
        chunks, so that empty seats cost less. Chunks then differ by rounding with the chunks in the other
        seats, and cannot be recomputed bit for bit. Only for fast stages with kernels.
    joints_each_step: every step of a staggered chunk gets the newest joints, instead of only those at its
        beginning; for a policy with a state token (pi0). The flow is then no longer conditioned on one state,
        as it was in training. A chunk records the joints of each step.
    scheduling: the scheduling policy of frames and actions, by its name in the entry points
        `vla_accel_ros.policies`; "auto" takes the one that the other options need. Text takes the slack.
    lanes: "one": everything in one lane; "text": text beside further chunks, but not beside a frame or its
        first chunk; "two": actions beside frames and text; "three": frames, actions and text at once. Each
        lane has its own CUDA stream; that of actions has the highest priority. With "three", staggering
        "fresh" adds a lane for first chunks. Not for frames that share forwards.
    prefill_groups: number of groups of layers in which a frame is computed, with a step of staggered chunks
        between two of them, so that a step waits for one group instead of a frame; 1 = whole. The results are
        the same bits. Only for fast stages with kernels, see docs/lab/streaming.md.
    text_groups: number of groups of layers in which a token of text is computed, each scheduled between
        actions by itself; 1 = whole. The results are the same bits. Only for fast stages with kernels.
    text_share: share of its lane's time that text gets when further chunks of a frame would take all of it, 0
        to MOST_TEXT; 0 = one token every 0.2 s. Frames and their first chunks never wait for it.
    frames_together: most waiting frames, with equal numbers of images, that one forward computes, e.g. of
        many robots; 1 = each alone. A chunk then differs by rounding with the frames in that forward, and
        cannot be recomputed bit for bit. Only for fast stages with kernels and the scheduling policies
        "throughput" and "batches".
    partition: division of the GPU's multiprocessors between several lanes: "none"; "A:B", A for actions and B
        for frames and text; or "auto", which measures splits in `Engine.prepare` and takes one only if
        actions would be late without it (policies.partition). Ignored on a device that cannot be divided.
    token_mode, token_prefer: how frames of a policy that acts by tokens share forwards, see policies.tokens.
    camera_hz: frame rate that token_mode "auto" and partition "auto" plan with; 0 = as often as they are
        wanted. action_hz: chunk rate that partition "auto" plans with; 0 = unknown.

    Raises ValueError, in one sentence, for an invalid value or combination.
    """

    slots: int = 5
    steps: int = 10
    time_rule: str = "auto"
    solver: str = EULER
    seed: int = 0
    noise: str = FRESH
    step_dt_s: float = 1 / 30
    answers: int = 4
    answer_tokens: int = 16
    fast: bool = False
    precision: str = EXACT
    calibration: str = ""
    keep_exact: bool = True
    offload: str = RESIDENT
    staggered: int = 0
    staggering: str = STREAM
    seats_by_load: bool = False
    joints_each_step: bool = False
    scheduling: str = AUTO
    lanes: str = ONE
    prefill_groups: int = 1
    text_groups: int = 1
    text_share: float = 0.0
    frames_together: int = 1
    partition: str = NO_PARTITION
    token_mode: str = SEQUENTIAL
    token_prefer: str = FRESHNESS
    camera_hz: float = 0.0
    action_hz: float = 0.0

    def __post_init__(self) -> None:
        if not self.step_dt_s > 0:
            raise ValueError(f"step_dt_s is {self.step_dt_s}; give the time between two actions in seconds.")
        for name, least in LEAST.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; give {least} or more.")
        offload_share(self.offload)
        if self.calibration and not self.precision.startswith(W8A8):
            raise ValueError(
                f"calibration is '{self.calibration}', but precision is {self.precision}, which has no use "
                f"for it; give precision {W8A8}, or no calibration."
            )
        needs_exact = self.precision == EXACT
        if not self.keep_exact and (needs_exact or self.staggered):
            why = f"precision is {self.precision}" if needs_exact else f"staggered is {self.staggered}"
            raise ValueError(
                f"keep_exact is false, but {why}, which computes with the exact weights; leave it true, or "
                "choose another precision and no staggered chunks."
            )
        if self.noise not in KINDS:
            raise ValueError(f"noise is '{self.noise}'; use one of {KINDS}.")
        if self.solver not in SOLVERS:
            raise ValueError(f"solver is '{self.solver}'; use one of {SOLVERS}.")
        if self.lanes not in LANES:
            raise ValueError(f"lanes is '{self.lanes}'; use one of {LANES}.")
        if self.split is not None and self.lanes not in (ACTIONS_APART, ALL_APART):
            raise ValueError(
                f"partition is '{self.partition}', but lanes is '{self.lanes}', where frames and actions "
                f"share a lane: use lanes '{ACTIONS_APART}' or '{ALL_APART}', or partition '{NO_PARTITION}'."
            )
        if self.staggering not in STAGGERING:
            raise ValueError(f"staggering is '{self.staggering}'; use one of {STAGGERING}.")
        if self.staggering == FRESH_FIRST and not self.staggered:
            raise ValueError(
                f"staggering is '{FRESH_FIRST}', but staggered is 0: further chunks have no seats; "
                f"give staggered 2 or more, or use '{STREAM}'."
            )
        if self.seats_by_load and not (self.fast and self.staggered):
            raise ValueError(
                "seats_by_load is true, but only seats of captured stages cost time when they are empty: "
                "give fast and staggered, or leave it false."
            )
        if self.joints_each_step and not self.staggered:
            raise ValueError(
                "joints_each_step is true, but only staggered chunks are computed step by step: "
                "give staggered 2 or more, or leave it false."
            )
        if self.token_mode not in TOKEN_MODES:
            raise ValueError(f"token_mode is '{self.token_mode}'; use one of {TOKEN_MODES}.")
        if self.token_prefer not in PREFERENCES:
            raise ValueError(f"token_prefer is '{self.token_prefer}'; use one of {PREFERENCES}.")
        if not 0 <= self.text_share <= MOST_TEXT:
            raise ValueError(f"text_share is {self.text_share}; give 0 to {MOST_TEXT} of the time.")
        if not 0 <= self.camera_hz < float("inf"):
            raise ValueError(f"camera_hz is {self.camera_hz}; give the frames a second, or 0.")
        if not 0 <= self.action_hz < float("inf"):
            raise ValueError(f"action_hz is {self.action_hz}; give the chunks a second, or 0.")
        if self.staggered and not 2 <= self.staggered <= MOST_SEATS:
            raise ValueError(
                f"staggered is {self.staggered}, but it is how many chunks are denoised at once: give 2 to "
                f"{MOST_SEATS}, or 0 for one chunk at a time."
            )
        if self.frames_together > 1 and self.prefill_groups > 1:
            raise ValueError(
                f"frames_together is {self.frames_together} and prefill_groups {self.prefill_groups}, but a "
                "frame is computed with others or in groups of layers: set one of them to 1."
            )

    @property
    def split(self) -> Split | None:
        """The numeric split in `partition`; None for "none" and "auto". Raises ValueError if it cannot be
        parsed."""
        return None if self.partition in (NO_PARTITION, AUTO) else Split.of(self.partition)
