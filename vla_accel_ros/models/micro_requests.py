"""The micro-requests that a family declares: what each reads and leaves, and for how long that is kept.

A policy's `chain` lists them in order of computation, each with the policy's method of the stage's name: it
gets what the micro-request reads, by name, and returns a dictionary of what it leaves. The engine computes
them, keeps what they leave and lets the scheduler run others in between. It knows nothing else of a family.

    text_encode     per instruction    words -> features of the text; computed once for the same words
    encode          per frame          pixels -> image tokens
    vae_encode      per frame          pixels -> latents
    prefill         per frame or chunk what came before -> "kv", or any tensors that steps read: keys and
                                       values of its own, or features that steps compute over again
    video_denoise   per frame          latents, its own result (None the first time), index -> that result;
                                       each of its `times` is a micro-batch, others run in between
    forward         per chunk          results, state -> "actions" [H, A] in one pass, or what steps read
    denoise         per step           x, t, dt, noise, state, results -> the velocity [1, H, A]; time runs
                                       from noise at 1 to actions at 0, by the policy's time_rule
                                       (models.flow.sampling); dt is that of equal steps
    decode          per step           "kv", "hidden" -> "actions" or "answer", by the network's `extend` and
                                       `logits` (models.text.decoding.Continues)

One of denoise, forward and decode leaves "actions". What is kept with a frame is declared with its largest
shape, because memory is allocated once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

TEXT_ENCODE, ENCODE, VAE_ENCODE, PREFILL = "text_encode", "encode", "vae_encode", "prefill"
VIDEO_DENOISE, DENOISE, DECODE, FORWARD = "video_denoise", "denoise", "decode", "forward"
STAGES = (TEXT_ENCODE, ENCODE, VAE_ENCODE, PREFILL, VIDEO_DENOISE, DENOISE, DECODE, FORWARD)
ACTING = (DENOISE, DECODE, FORWARD)
"""Stages that may leave ACTIONS."""

INSTRUCTION, FRAME, CHUNK, STEP = "instruction", "frame", "chunk", "step"
KEPT = (INSTRUCTION, FRAME, CHUNK, STEP)
"""How long a result is kept, longest first."""

PIXELS, WORDS, STATE = "pixels", "words", "state"
"""Inputs of every policy, see models.policy.PolicyInputs."""
INDEX = "index"
"""Of a micro-request that is computed several times: which time this is, from 0."""
OF_STEP = ("x", "t", "dt", "noise")
"""What DENOISE gets: the chunk float32 [1, H, A], the flow time [1], the size of a step [1] (negative), and
the noise with which the chunk began."""
KV, ACTIONS, ANSWER = "kv", "actions", "answer"
"""Results that the engine knows: keys and values of the stack `config.prefix`, which lie in the engine's pool
(models.layers.gemma.KV, a batch of one); a chunk; text."""


@dataclass(frozen=True)
class Leaf:
    """A tensor that is left under a name, or a further input. shape: the largest; a result may be smaller in
    every dimension. dtype: torch's name of it, None = the policy's kv_dtype."""

    name: str
    shape: tuple[int, ...] = ()
    dtype: str | None = None


@dataclass(frozen=True)
class MicroRequest:
    """One stage of a family. reads: names of inputs, of what the engine gives and of what earlier ones leave.
    leaves: results; of KV, ACTIONS and ANSWER only the name counts. kept: for how long. times: how often it
    is computed, each time a micro-batch by itself, on what it left before, which is None the first time."""

    stage: str
    reads: tuple[str, ...]
    leaves: tuple[Leaf, ...]
    kept: str = FRAME
    times: int = 1


@dataclass(frozen=True)
class Chain:
    """The micro-requests of a family, in order of computation. inputs: further ones that `policy.inputs` adds
    to PolicyInputs.more, such as the number of an embodiment. causal: whether no token of a prefix sees a
    later one. capturable: see models.policies.CapturablePolicy. least_images: fewest images of a frame.

    Raises ValueError in one sentence for a chain that cannot be computed.
    """

    micro_requests: tuple[MicroRequest, ...]
    inputs: tuple[Leaf, ...] = ()
    causal: bool = False
    capturable: bool = False
    least_images: int = 1

    def __post_init__(self) -> None:
        known = {PIXELS: FRAME, WORDS: INSTRUCTION, STATE: FRAME} | {i.name: FRAME for i in self.inputs}
        stages = list[str]()
        for micro in self.micro_requests:
            where = f"the micro-request {micro.stage}"
            if micro.stage not in STAGES or micro.stage in stages or micro.kept not in KEPT:
                raise ValueError(f"{where}, kept per {micro.kept}: each of {STAGES} once, kept per {KEPT}.")
            available = known.keys() | _given(micro)
            if unknown := [name for name in micro.reads if name not in available]:
                raise ValueError(f"{where} reads {unknown}, but before it there is only {sorted(known)}.")
            longest = KEPT.index(micro.kept)
            if shorter := [name for name in micro.reads if KEPT.index(known.get(name, micro.kept)) > longest]:
                raise ValueError(f"{where} is kept per {micro.kept}, which is longer than {shorter}.")
            if PIXELS in micro.reads and micro.kept in (CHUNK, STEP):
                raise ValueError(f"{where} reads {PIXELS}, which are not kept; let {ENCODE} read them.")
            if twice := [leaf.name for leaf in micro.leaves if leaf.name in known]:
                raise ValueError(f"{where} leaves {twice}, which is there already; name it otherwise.")
            stages.append(micro.stage)
            known |= {leaf.name: micro.kept for leaf in micro.leaves}
        acting = [micro.stage for micro in self.micro_requests if _leaves(micro, ACTIONS)]
        if len(acting) != 1 or acting[0] not in ACTING:
            raise ValueError(f"'{ACTIONS}' are left by {acting or 'none'}; exactly one of {ACTING} must.")
        if self.capturable and self.acts == DECODE:
            raise ValueError(f"the chain {stages} says capturable, but actions of {DECODE} are not.")

    @cached_property
    def acting(self) -> MicroRequest:
        """The one that leaves actions."""
        return next(micro for micro in self.micro_requests if _leaves(micro, ACTIONS))

    @property
    def acts(self) -> str:
        """How an action is made: the stage DENOISE, DECODE or FORWARD."""
        return self.acting.stage

    @cached_property
    def decodes(self) -> bool:
        """Whether its language head can continue a prefix."""
        return any(micro.stage == DECODE for micro in self.micro_requests)

    @cached_property
    def answers(self) -> bool:
        """Whether that gives text besides actions, so that it can be asked."""
        return any(micro.stage == DECODE and _leaves(micro, ANSWER) for micro in self.micro_requests)

    @cached_property
    def takes_state(self) -> bool:
        """Whether each action request can carry a newer state than its prefix."""
        return any(STATE in micro.reads for micro in (self.acting, *self.of_chunk))

    @cached_property
    def of_frame(self) -> tuple[MicroRequest, ...]:
        """What is computed when a frame is observed."""
        return tuple(micro for micro in self.micro_requests if self._is_before(micro, (INSTRUCTION, FRAME)))

    @cached_property
    def holds_kv(self) -> bool:
        """Whether a frame leaves keys and values in the engine's pool."""
        return any(_leaves(micro, KV) for micro in self.of_frame)

    @cached_property
    def of_chunk(self) -> tuple[MicroRequest, ...]:
        """What is computed once at the beginning of a chunk."""
        return tuple(micro for micro in self.micro_requests if self._is_before(micro, (CHUNK,)))

    @cached_property
    def of_words(self) -> tuple[MicroRequest, ...]:
        """What a frame must compute again for other words."""
        changed, again = {WORDS}, list[MicroRequest]()
        for micro in self.of_frame:
            if changed & set(micro.reads):
                again.append(micro)
                changed |= {leaf.name for leaf in micro.leaves}
        return tuple(again)

    @cached_property
    def kept(self) -> Mapping[str, Leaf]:
        """What is held with a frame, by name: all that its chunks, its text and other words for it read."""
        names = {n for micro in self.micro_requests if micro not in self.of_frame for n in micro.reads}
        if self.decodes:
            names |= {name for micro in self.of_words for name in micro.reads if name != WORDS}
        leaves = [leaf for micro in self.of_frame for leaf in micro.leaves]
        leaves += [*self.inputs, Leaf(WORDS, dtype="int64")]
        return {leaf.name: leaf for leaf in leaves if leaf.name in names}

    @cached_property
    def of_steps(self) -> Mapping[str, Leaf]:
        """What of that the micro-request reads that leaves actions."""
        return {name: leaf for name, leaf in self.kept.items() if name in self.acting.reads}

    def _is_before(self, micro: MicroRequest, kept: tuple[str, ...]) -> bool:
        return micro.kept in kept and micro is not self.acting and micro.stage != DECODE


def micro_batches(micro_requests: Iterable[MicroRequest]) -> list[list[tuple[MicroRequest, int]]]:
    """A frame's micro-requests in micro-batches, each with its index: what is computed several times is alone
    each time, those in between go together. Without what is kept for an instruction."""
    batches = list[list[tuple[MicroRequest, int]]]()
    for micro in micro_requests:
        for index in range(micro.times) if micro.kept != INSTRUCTION else ():
            if micro.times > 1 or not batches or batches[-1][0][0].times > 1:
                batches.append([])
            batches[-1].append((micro, index))
    return batches


def _given(micro: MicroRequest) -> set[str]:
    """Names that are there besides inputs and earlier results."""
    if micro.stage == DENOISE:
        return {*OF_STEP}
    return {INDEX, *(leaf.name for leaf in micro.leaves)} if micro.times > 1 else set()


def _leaves(micro: MicroRequest, name: str) -> bool:
    return any(leaf.name == name for leaf in micro.leaves)
