"""Checks a policy against the options of its engine: whether it has kernels, or functions that can be
captured.

An option that the policy, the device or another option does not support is refused when the engine is made,
in one sentence that says what to choose instead.
"""

from __future__ import annotations

import importlib.util

from vla_accel_ros.engine.config import (
    ONE,
    PIPELINED,
    RESIDENT,
    SEQUENTIAL,
    TEXT,
    EngineConfig,
    offload_share,
)
from vla_accel_ros.engine.stages.dropping import called
from vla_accel_ros.engine.stages.memory import offload
from vla_accel_ros.engine.stages.precision import EXACT, W8A8_INT4, check
from vla_accel_ros.models.flow.solver import EULER
from vla_accel_ros.models.layers.few_bits import given_as
from vla_accel_ros.models.layers.quantized import FP8, INT4, INT8, NVFP4, W8A8
from vla_accel_ros.models.micro_requests import DECODE, DENOISE, STATE
from vla_accel_ros.models.openvla.model import OpenVLA
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.pi_fast.model import PiFast
from vla_accel_ros.models.policies import AnyPolicy
from vla_accel_ros.models.smolvla.model import SmolVLA

FLOWS = (Pi, SmolVLA)
"""Models whose stages of kernels encode images and denoise chunks."""
KERNELS = (*FLOWS, PiFast, OpenVLA)
"""Models that have captured stages of kernels."""


def has_stages(policy: AnyPolicy) -> bool:
    """Whether captured stages compute a policy on its device where nobody says `fast`: stages of kernels need
    Triton; captured plain functions need nothing."""
    if policy.device.type != "cuda":
        return False
    if has_kernels(policy):
        return importlib.util.find_spec("triton") is not None
    return is_capturable(policy)


def has_kernels(policy: AnyPolicy) -> bool:
    return type(policy.model) in KERNELS


def is_capturable(policy: AnyPolicy) -> bool:
    """Whether it is a CapturablePolicy."""
    return policy.chain.capturable


def check_options(policy: AnyPolicy, config: EngineConfig) -> None:
    """Raise ValueError for options that the policy does not support."""
    kind, device, dtype = policy.config.kind, policy.device, policy.kv_dtype
    check(config.precision, config.fast, device, dtype)
    stored, required = given_as(policy.model), called(config.precision, config.calibration)
    if stored and (config.keep_exact or stored != {required}):
        raise ValueError(
            f"keep_exact is {str(config.keep_exact).lower()} and precision {required}, but this "
            f"policy has some weights in {' and '.join(sorted(stored))} alone, since it was loaded so or for "
            "another engine; take keep_exact false and that precision, or load it again."
        )
    offload.check(offload_share(config.offload), config.fast, device)
    if config.offload == TEXT and not hasattr(policy.model, "text_encoder"):
        raise ValueError(
            f"offload is {TEXT}, but a {kind} policy has no text encoder of its own; use {RESIDENT}."
        )
    if config.prefill_groups > 1:
        _check_groups(policy, config)
    if config.text_groups > 1:
        _check_text_groups(policy, config)
    if config.frames_together > 1 and not (config.fast and type(policy.model) in FLOWS):
        raise ValueError(
            f"frames_together is {config.frames_together}, but only fast stages of pi0, pi0.5 and SmolVLA "
            "compute several frames in one forward; use 1."
        )
    if config.seats_by_load and not (config.fast and type(policy.model) in FLOWS):
        raise ValueError(
            "seats_by_load is true, but only seats of fast stages of pi0, pi0.5 and SmolVLA have several "
            "sizes; leave it false."
        )
    if config.precision != EXACT and isinstance(policy.model, SmolVLA | PiFast):
        raise ValueError(
            f"precision is {config.precision}, but stages of a {kind} policy have the weights as they are; "
            f"use {EXACT}."
        )
    if config.joints_each_step and not (policy.chain.acts == DENOISE and STATE in policy.chain.acting.reads):
        raise ValueError(
            f"joints_each_step is true, but a {kind} policy takes no joints with its steps; leave it false."
        )
    if config.fast and not has_kernels(policy):
        if not is_capturable(policy):
            raise ValueError(f"fast is true, but a {kind} policy has no fast stages; leave it false.")
        if config.precision != EXACT:
            raise ValueError(
                f"precision is {config.precision}, but the fast stages of a {kind} policy are its plain "
                f"functions, which have the weights as they are; use {EXACT}."
            )
        if config.offload not in (RESIDENT, TEXT):
            raise ValueError(
                f"offload is {config.offload}, but the fast stages of a {kind} policy are its plain "
                f"functions, whose weights stay where they are; use {RESIDENT}."
            )
    acts = policy.chain.acts
    if acts != DECODE and config.token_mode != SEQUENTIAL:
        raise ValueError(
            f"token_mode is '{config.token_mode}', but a {kind} policy does not act by tokens; use "
            f"{SEQUENTIAL}."
        )
    if acts == DENOISE:
        return
    if config.solver != EULER:
        raise ValueError(f"solver is '{config.solver}', but a {kind} policy denoises nothing: use {EULER}.")
    if config.staggered:
        raise ValueError(f"staggered is {config.staggered}, but a {kind} policy denoises nothing: use 0.")
    if acts != DECODE:
        return
    if not policy.chain.causal:
        if config.token_mode not in (SEQUENTIAL, PIPELINED):
            raise ValueError(
                f"token_mode is '{config.token_mode}', but images and words of a {kind} policy see each "
                f"other and share no forward with tokens; use {SEQUENTIAL} or {PIPELINED}."
            )
        return
    if config.lanes != ONE and (config.fast or config.token_mode != SEQUENTIAL):
        raise ValueError(
            f"lanes is '{config.lanes}', but frames of a {kind} policy share forwards with their actions; "
            f"use '{ONE}', or token_mode {SEQUENTIAL} without fast."
        )
    if config.precision in (FP8, NVFP4, W8A8_INT4):
        raise ValueError(
            f"precision is {config.precision}, but {kind} has no stages in it; use {W8A8}, {INT8} or {INT4}."
        )
    if config.precision in (INT8, INT4) and config.token_mode != SEQUENTIAL:
        raise ValueError(
            f"precision is {config.precision} and token_mode '{config.token_mode}', but only forwards of few "
            f"rows have small weights, so actions would depend on the mode; use {SEQUENTIAL} or {EXACT}."
        )


def _check_groups(policy: AnyPolicy, config: EngineConfig) -> None:
    """Raise ValueError if frames cannot be computed in that many groups of layers."""
    refusal, model = f"prefill_groups is {config.prefill_groups}, but", policy.model
    if type(model) not in FLOWS:
        raise ValueError(f"{refusal} frames of a {policy.config.kind} policy are computed whole; use 1.")
    if not config.fast:
        raise ValueError(f"{refusal} plain torch computes frames whole; set fast to true, or use 1.")
    layers = model.config.vision.depth + model.config.prefix.depth
    if config.prefill_groups > layers:
        raise ValueError(f"{refusal} the model has {layers} layers; give at most as many.")


def _check_text_groups(policy: AnyPolicy, config: EngineConfig) -> None:
    """Raise ValueError if tokens of text cannot be computed in that many groups of layers."""
    refusal = f"text_groups is {config.text_groups}, but"
    if policy.chain.acts != DENOISE or not (policy.chain.decodes and has_kernels(policy)):
        raise ValueError(f"{refusal} a {policy.config.kind} policy computes its text at once; use 1.")
    if not config.fast:
        raise ValueError(f"{refusal} plain torch computes tokens at once; set fast to true, or use 1.")
    layers = policy.config.prefix.depth
    if config.text_groups > layers:
        raise ValueError(f"{refusal} the model has {layers} layers of text; give at most as many.")
