"""Every option of an engine, with its default, in one place.

Node parameters, command-line options and the record of a session derive from this dataclass. An option whose
default changes here changes everywhere.
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
EXACT, W8A8, W8A8_FP8 = "exact", "w8a8", "w8a8-fp8"
DENOISED = (W8A8, W8A8_FP8)
"""Precisions whose steps of denoising may be of rows in 8 bits."""
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
"""The least of whole numbers."""
MOST_SEATS = 64
"""Chunks denoised at once."""
MOST_TEXT = 0.5
"""Of the time that text may be given."""
NO_PARTITION = "none"


@dataclass(frozen=True, order=True)
class Split:
    """Multiprocessors of actions, and of frames and text."""

    actions: int
    rest: int

    @classmethod
    def of(cls, word: str) -> Split:
        """Of "A:B". Raises ValueError for anything else."""
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
    """Of the vision towers' layers, the share that an option offload streams: "none", "vision" (all) or
    "vision:SHARE". Raises ValueError for anything else."""
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

    slots: prefixes alive at once, at least 4: the newest, one being computed, one acted on, one asked about.
        Staggered chunks need one each and 3 more. Frames that share forwards are given what they need. A
        robot that the engine is made with brings one; whoever adds robots later needs one for each.
    steps, time_rule: flow sampling, see models.flow.sampling; "auto" is the rule of whoever trained the
        policy. solver: "euler", as policies are trained to be sampled, or "ab2", Adams-Bashforth of second
        order, which comes as near with about half the steps, see models.flow.solver and docs/solvers.md.
    seed, noise: what chunks begin with, see models.flow.noise: "fresh", a function of (seed, request) alone,
        or "coherent", of (seed, time of each action): smaller seams, but no less jerk (docs/performance.md).
    step_dt_s: seconds between two actions of a chunk, of robots that have none of their own.
    answers, answer_tokens: most answers written at once, and most tokens in one.
    fast: compute by captured stages and, where the family has them, fused kernels.
    precision: of the captured stages, see engine.stages.precision; all but "exact" change the actions.
    calibration: file of `vla calibrate` for precision "w8a8", "w8a8-int4" or "w8a8-fp8"; "" = none: columns
        are not smoothed.
    eight_bit_denoise: whether denoising of precision "w8a8" and "w8a8-fp8" is in 8 bits on GPUs with fast
        memory, too, where launches bound it and it is slower than exact (docs/precision.md).
    keep_exact: False gives up the exact weights of what the stages have in fewer bits, to save their memory;
        the policy can then be computed by such stages alone, see engine.stages.dropping and docs/plan.md.
    offload: "none", "vision" or "vision:SHARE": layers of the vision towers, all or a share, whose weights
        are in page-locked host memory and copied to the GPU in every frame while others compute, to the same
        bits; see docs/offload.md.
    staggered: chunks denoised at once, each at its own step; 0 = whole chunks. Up to `steps` of them, one is
        begun in each step; with more seats, several are.
    staggering: "stream": every chunk is one of them; "fresh": the first chunk of a frame is denoised whole
        and before them, and they are further chunks of the frame.
    seats_by_load: a step of staggered chunks computes the fewest of 1, 2, 4, ... and all seats that hold its
        chunks, so that empty seats cost less; chunks then differ by rounding with what is denoised with them,
        and are not computed again to the bit. For fast stages of kernels.
    joints_each_step: every step of a chunk in a seat is given the newest joints, for a policy with a state
        token (pi0), and not those alone that it began with; for staggered chunks. The flow is then no longer
        that of one state, as it was trained. A chunk records what each step was given.
    scheduling: the scheduling policy of frames and actions, by its name in the entry points
        `vla_accel_ros.policies`; "auto" is the one that the other options ask for. Text takes the slack.
    lanes: "one": everything one after another; "text": text beside further chunks, but not beside a frame or
        its first chunk; "two": actions beside frames and text; "three": frames, actions and text at once.
        Each lane has a CUDA stream of its own, of which that of actions is the most urgent; with "three"
        staggering "fresh" adds a lane for first chunks. Not for frames that share forwards.
    prefill_groups: how many groups of layers a frame is computed in, with a step of staggered chunks between
        two of them, so that a step waits for one group and not for a frame; 1 = none. The bits are the same.
        For fast stages of kernels alone, see docs/streaming.md.
    text_groups: how many groups of layers a token of text is computed in, each of which is fitted between
        actions by itself; 1 = none. The bits are the same. For fast stages of kernels alone, as those.
    text_share: of the time of its lane that text gets where further chunks of a frame would take all of it,
        0 to MOST_TEXT; 0 = a token each 0.2 s. Frames and their first chunks never wait for it.
    frames_together: most frames, of the same number of images, that are computed in one forward where
        several wait, as those of many robots do; 1 = each alone. A chunk then differs by rounding with what
        its frame was computed with, and is not computed again to the bit. For fast stages of kernels, and the
        scheduling policies "throughput" and "batches".
    partition: sets of the GPU's multiprocessors for several lanes: "none"; "A:B", A for actions and B for
        frames and text; or "auto", which measures splits in `Engine.prepare` and takes one only where actions
        would be late without (policies.partition). Where a device cannot be divided there is none.
    token_mode, token_prefer: how frames of a policy that acts by tokens share forwards, see policies.tokens.
    camera_hz: how often frames come, which token_mode "auto" and partition "auto" plan with; 0 = as often as
        they are wanted. action_hz: how often chunks are wanted, which partition "auto" plans with; 0 = not
        known.

    Raises ValueError, in one sentence, for a value that cannot be.
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
    eight_bit_denoise: bool = False
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
        if self.eight_bit_denoise and self.precision not in DENOISED:
            raise ValueError(
                f"eight_bit_denoise is true, but precision is {self.precision}, which has no such steps; use "
                f"{' or '.join(DENOISED)}, or leave it false."
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
        """The split that partition asks for by numbers. Raises ValueError if it is no partition at all."""
        return None if self.partition in (NO_PARTITION, AUTO) else Split.of(self.partition)
