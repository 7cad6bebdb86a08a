"""Every option of an engine, in one place (option.py): a new one is a field here, and whatever reads it.
`goal` sets many of them at once (engine/goals.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vla_accel_ros.models.flow.solver import EULER, SOLVERS
from vla_accel_ros.option import check_options, option, options

GOALS = ("first_chunk", "rate", "memory", "many_robots")
SEQUENTIAL, PIPELINED, SPECULATIVE, AUTO = "sequential", "pipelined", "speculative", "auto"
TOKEN_MODES = (SEQUENTIAL, PIPELINED, SPECULATIVE, AUTO)
ONE, TEXT_APART, ACTIONS_APART, ALL_APART = "one", "text", "two", "three"
LANES = (ONE, TEXT_APART, ACTIONS_APART, ALL_APART)
STREAM, FRESH_FIRST = "stream", "fresh"
STAGGERING = (STREAM, FRESH_FIRST)
RATE, FRESHNESS = "rate", "freshness"
PREFERENCES = (RATE, FRESHNESS)
EXACT, W8A8 = "exact", "w8a8"
PRECISIONS = (EXACT, "fp8", "nvfp4", "int8", "int4", W8A8, "w8a8-int4")
RESIDENT, VISION, TEXT = "none", "vision", "text"
MOST_SEATS = 64
"""Most chunks that are denoised at once."""
NO_PARTITION = "none"


REMOVED = {"eight_bit_denoise": False, "noise": "fresh"}
"""Options of earlier versions, and the value by which every engine now acts."""


def renamed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of any version, by the present names of the options."""
    present = {entry.former: name for name, entry in options(EngineConfig).items() if entry.former}
    return {
        present.get(name, name): value
        for name, value in settings.items()
        if name not in REMOVED or value != REMOVED[name]
    }


@dataclass(frozen=True, order=True)
class Split:
    """Numbers of multiprocessors: for actions, and for frames and text."""

    actions: int
    rest: int

    @classmethod
    def of(cls, word: str) -> Split:
        """Parses "A:B". Raises ValueError for anything else."""
        numbers = re.fullmatch(r"([1-9]\d{0,5}):([1-9]\d{0,5})", word, re.ASCII)
        if numbers is None:
            raise ValueError(
                f"partition is '{word}'; use '{NO_PARTITION}', '{AUTO}', or multiprocessors of actions "
                "and of the rest, such as '32:100'."
            )
        return cls(int(numbers[1]), int(numbers[2]))

    def __str__(self) -> str:
        return f"{self.actions}:{self.rest}"


def offload_share(offload: str) -> float:
    """The share of the vision towers' layers that an offload option streams: 0 for "none" and "text", 1 for
    "vision", SHARE for "vision:SHARE". Raises ValueError for anything else."""
    if offload in (RESIDENT, TEXT):
        return 0.0
    tower, colon, number = offload.partition(":")
    try:
        share = float(number) if colon else 1.0
    except ValueError:
        share = 0.0
    if tower != VISION or not 0 < share <= 1:
        raise ValueError(
            f"offload is '{offload}'; use {RESIDENT}, {TEXT}, {VISION}, or {VISION} with a share of its "
            f"layers, above 0 and up to 1, such as {VISION}:0.25."
        )
    return share


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """How an engine runs a policy. docs/reference/parameters.md lists what each option does.

    Options that are not given have their defaults, or what `goal` sets once the policy is known
    (engine.goals.toward_goal). `slots` counts all prefixes; each robot given to the engine's constructor adds
    one, and a caller that adds robots later must allow one for each.

    Raises ValueError, in one sentence, for an invalid value or combination.
    """

    goal: str = option(
        "",
        "Set the options that are not set themselves for a goal: first_chunk, the first chunk of a frame as "
        "early as possible; rate, as many chunks a second as possible; memory, to fit on a small GPU, which "
        "changes the actions slightly; many_robots, one engine for a fleet. Empty: the defaults.",
        choices=("", *GOALS),
    )
    fast: bool = option(
        False,
        "Compute with captured stages, which are made while the node configures; false is plain torch. auto: "
        "on CUDA, for pi0, pi0.5, pi0-FAST, SmolVLA and OpenVLA (fused kernels, which need triton), and for "
        "all policies that can be captured: GR00T, X-VLA, Fast-WAM, mimic-video, OpenVLA-OFT, and those of "
        "other packages.",
        in_nodes={"default": AUTO, "choices": (AUTO, "true", "false")},
    )
    slots: int = option(
        5,
        "Frames whose keys and values fit at once: one being computed, the newest, one acted on and one "
        "asked about. A node adds those that answers, staggered and frames_together need.",
        minimum=1,
        in_nodes={"minimum": 4, "maximum": 64},
        former="kv_slots",
    )
    precision: str = option(
        EXACT,
        "Precision of the fast stages. All but exact change the actions (docs/lab/precision.md): fp8 "
        "multiplies in 8 bits, on GPUs from sm_89 on; nvfp4 in 4 bits, in prefill, on GPUs from sm_100 on, "
        "untried; int8 and int4 store the weights of denoising and text; "
        "w8a8 multiplies int8 by int8 in all stages, on GPUs from sm_80 on; w8a8-int4 does so in encode and "
        "prefill, with int4 weights in denoising and text.",
        choices=PRECISIONS,
    )
    calibration: str = option(
        "",
        "File of `vla calibrate` for precision w8a8 and w8a8-int4: it smooths columns, and keeps products "
        "that would lose too much exact. Empty: none.",
    )
    keep_exact: bool = option(
        True,
        "Keep the exact weights of stages that precision has in fewer bits. False drops them while the "
        "checkpoint is loaded, a layer at a time, to save memory; staggered chunks, guidance by the exact "
        "Jacobian and, in fp8 and nvfp4, questions are then refused (docs/lab/plan.md).",
    )
    offload: str = option(
        RESIDENT,
        "Vision layers of the fast stages whose weights stay in host memory and are copied to the GPU in "
        "every frame: none, vision (all) or vision:0.25 (a share). Actions are the same; the log says what "
        "it saves and costs (docs/lab/offload.md). text: a text encoder, copied once an instruction.",
    )
    steps: int = option(
        10, "Steps of flow matching per chunk.", minimum=1, in_nodes={"maximum": 64}, former="denoise_steps"
    )
    solver: str = option(
        EULER,
        "Solver of flow matching: euler, the one that policies are trained for, or ab2, second-order "
        "Adams-Bashforth, as accurate with about half the steps (docs/lab/solvers.md). For models that act "
        "by flow.",
        choices=SOLVERS,
    )
    time_rule: str = option(
        AUTO,
        "How the flow time is stepped (models/flow/sampling.py); auto is the rule that the policy was "
        "trained with.",
        choices=(AUTO, "openpi", "lerobot"),
    )
    seed: int = option(0, "Seed of the denoising noise, which also depends on the request.", minimum=0)
    staggered: int = option(
        0,
        "Chunks denoised at once, each begun on the newest frame and joints, a step after the one before "
        "(faster only with fast): up to `steps` times as many chunks, each finished later than one that is "
        "denoised alone. More than `steps` are for many robots: several begin in a step. They are not guided "
        "(rtc). 0: one chunk at a time.",
        minimum=0,
        maximum=MOST_SEATS,
    )
    staggering: str = option(
        STREAM,
        "Which chunks are staggered: stream: all; fresh: further chunks of a frame, for newer joints; the "
        "frame's first chunk is denoised whole and before them (with lanes three in its own lane).",
        choices=STAGGERING,
        fleet=False,
    )
    seats_by_load: bool = option(
        False,
        "Compute a step of staggered chunks with the fewest of 1, 2, 4, ... and all seats that hold its "
        "chunks, so that empty seats cost less (docs/lab/staggered.md). Chunks then differ by rounding "
        "with what is denoised beside them, and a replay is near, not equal. Needs fast stages of pi0, "
        "pi0.5 or SmolVLA.",
    )
    joints_each_step: bool = option(
        False,
        "Give every step of a staggered chunk the newest joints, not only those at its start, for a policy "
        "with a state token (pi0) (docs/lab/staggered.md). The policy was not trained this way: measure "
        "success before you rely on it.",
        fleet=False,
    )
    scheduling: str = option(
        AUTO,
        "Scheduling rule, which decides what runs next: whole, staggered, throughput, batches, tokens or "
        "one of another package (entry points vla_accel_ros.policies); auto follows from the other options.",
    )
    lanes: str = option(
        ONE,
        "What runs at once, each lane in its own CUDA stream: one: nothing, one after another; text: text "
        "beside further chunks, not beside a frame or its first chunk; two: actions beside frames and text; "
        "three: frames, actions and text. Chunks have the same bits.",
        choices=LANES,
    )
    partition: str = option(
        NO_PARTITION,
        "Sets of the GPU's multiprocessors for two or three lanes: none; A:B in quotes, A for actions and B "
        "for frames and text; auto measures splits on configure and uses one only if actions would be late "
        "without it (docs/lab/streaming.md). If a GPU cannot be divided, actions come first by priority.",
    )
    prefill_groups: int = option(
        1,
        "Groups of layers in which a frame is computed. Between two groups comes a step of staggered "
        "chunks, which then waits for one group instead of a whole frame (docs/lab/streaming.md). Needs "
        "fast stages of pi0, pi0.5 or SmolVLA. 1: a frame is computed at once.",
        minimum=1,
        in_nodes={"maximum": 64},
    )
    frames_together: int = option(
        1,
        "Most frames in one forward when several wait, as with many robots, for scheduling throughput or "
        "batches. A chunk then differs by rounding with the frames beside its own, and a replay is near, not "
        "equal. Needs fast stages of pi0, pi0.5 or SmolVLA. 1: each alone.",
        minimum=1,
        in_nodes={"maximum": 16},
    )
    text_groups: int = option(
        1,
        "Groups of layers in which a token of text is computed, each scheduled separately between actions "
        "(docs/lab/streaming.md). Needs fast stages. 1: a token is computed at once.",
        minimum=1,
        in_nodes={"maximum": 64},
    )
    text_share: float = option(
        0.0,
        "Share of time for text when further chunks of a frame would take all of it; new frames and their "
        "first chunks never wait for it (docs/lab/streaming.md). 0: a token each 0.2 s.",
        minimum=0.0,
        maximum=0.5,
        fleet=False,
    )
    answers: int = option(
        4,
        "Answers written at once; further ones wait.",
        minimum=1,
        in_nodes={"maximum": 32},
        former="language_answers",
    )
    answer_tokens: int = option(
        16,
        "Longest answer, in tokens.",
        minimum=1,
        in_nodes={"maximum": 512},
        former="language_max_tokens",
    )
    token_mode: str = option(
        SEQUENTIAL,
        "How frames of a model that acts by tokens (OpenVLA; pi0-FAST, the first two) share forwards: "
        "sequential: not at all; pipelined: later frames carry the tokens of earlier ones; speculative: the "
        "last action is a draft of the next; auto: by measured times and how often drafts are right. In "
        "float32 the actions are the same.",
        choices=TOKEN_MODES,
    )
    token_prefer: str = option(
        FRESHNESS,
        "Goal of token_mode speculative and auto: the freshness of an action, or the rate of actions.",
        choices=PREFERENCES,
    )
    step_dt_s: float = option(
        1 / 30, "Time between two actions of a chunk, for robots without their own [s].", parameter=False
    )
    camera_hz: float = option(
        0.0,
        "Rate of frames that token_mode auto and partition auto plan with [Hz]; 0: as often as they are "
        "wanted.",
        minimum=0.0,
        parameter=False,
    )
    action_hz: float = option(
        0.0,
        "Rate of chunks that partition auto plans with [Hz]; 0: unknown.",
        minimum=0.0,
        parameter=False,
    )

    def __new__(cls, **given: Any) -> EngineConfig:
        """Note which options are given: a goal leaves those alone."""
        config = super().__new__(cls)
        vars(config)["_given"] = tuple(given)
        return config

    def __post_init__(self) -> None:
        check_options(self)
        if not self.step_dt_s > 0:
            raise ValueError(f"step_dt_s is {self.step_dt_s}; give the time between two actions in seconds.")
        for name in ("camera_hz", "action_hz"):
            if getattr(self, name) == float("inf"):
                raise ValueError(f"{name} is inf; give a rate, or 0.")
        offload_share(self.offload)
        if self.calibration and not self.precision.startswith(W8A8):
            raise ValueError(
                f"calibration is '{self.calibration}', but precision is {self.precision}, which has no use "
                f"for it; give precision {W8A8}, or no calibration."
            )
        needs_exact = self.precision == EXACT
        if not self.keep_exact and (needs_exact or self.staggered):
            reason = f"precision is {self.precision}" if needs_exact else f"staggered is {self.staggered}"
            raise ValueError(
                f"keep_exact is false, but {reason}, which computes with the exact weights; leave it true, "
                "or choose another precision and no staggered chunks."
            )
        if self.split is not None and self.lanes not in (ACTIONS_APART, ALL_APART):
            raise ValueError(
                f"partition is '{self.partition}', but lanes is '{self.lanes}', where frames and actions "
                f"share a lane: use lanes '{ACTIONS_APART}' or '{ALL_APART}', or partition '{NO_PARTITION}'."
            )
        if self.staggered == 1:
            raise ValueError(
                f"staggered is 1, but it is how many chunks are denoised at once: give 2 to {MOST_SEATS}, "
                "or 0 for one chunk at a time."
            )
        seats_for = {
            f"staggering is '{self.staggering}'": self.staggering == FRESH_FIRST,
            "seats_by_load is true": self.seats_by_load,
            "joints_each_step is true": self.joints_each_step,
        }
        for setting, needs_seats in seats_for.items():
            if needs_seats and not self.staggered:
                raise ValueError(
                    f"{setting}, but staggered is 0: give staggered 2 or more, or leave out the former."
                )
        if self.frames_together > 1 and self.prefill_groups > 1:
            raise ValueError(
                f"frames_together is {self.frames_together} and prefill_groups {self.prefill_groups}, but a "
                "frame is computed with others or in groups of layers: set one of them to 1."
            )

    @property
    def given(self) -> dict[str, Any]:
        """The options that were given to the constructor."""
        return {name: getattr(self, name) for name in vars(self)["_given"]}

    def but(self, **changes: Any) -> EngineConfig:
        """A config with the given options and these; unlike `dataclasses.replace` it leaves others to a
        goal."""
        return type(self)(**{**self.given, **changes})

    @property
    def split(self) -> Split | None:
        """The numeric split in `partition`; None for "none" and "auto". Raises ValueError if it cannot be
        parsed."""
        return None if self.partition in (NO_PARTITION, AUTO) else Split.of(self.partition)

    def further_slots(self, answers: bool) -> int:
        """Slots that the options need beyond those of one frame after another. answers: whether the policy
        can answer questions."""
        return (self.answers - 1 if answers else 0) + self.staggered + self.frames_together - 1
