"""Our models against recordings of the unmodified references: openpi, OpenVLA, GR00T, lerobot.

VLA_ORACLES=<folder> pytest test/models/test_oracles.py compares them with every recording in a folder;
without the variable, with those shipped with the tests (oracle.py). pi0 and pi0.5 are computed padded and
packed (oracle_runs.py), OpenVLA's scores token by token and in one pass. How near all must come is in
oracle_agreement.py; greedy tokens of float32 recordings must be the same. Float32 recordings are computed in
bfloat16, too, which robots run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from closeness import rounding
from fastwam_oracle import FastWAMOracle, fastwam_names
from groot_oracle import GrootOracle, groot_names
from mimic_video_oracle import MimicVideoOracle, mimic_video_runs
from openvla_oft_oracle import OFTOracle, oft_names
from openvla_oracle import OpenVLAOracle
from oracle import FOLDER, Oracle, fixture_names
from oracle_agreement import agree, bound, distance, in_half
from oracle_runs import Run
from pi_fast_oracle import SAMPLES, PiFastOracle, pi_fast_names
from xvla_oracle import XVLAOracle, xvla_names

from shared.decoding import decode
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.kernels.ops import ops_for
from vla_accel_ros.models.flow.rtc import prefix_weights
from vla_accel_ros.models.flow.sampling import flow_times
from vla_accel_ros.models.layers.residual import computing
from vla_accel_ros.models.openvla.model import is_unused
from vla_accel_ros.models.openvla_oft.jpeg import through_jpeg
from vla_accel_ros.models.openvla_oft.pictures import crop, prepared, resize_lanczos

pytestmark = pytest.mark.usefixtures("without_gradients")

NAMES = fixture_names("pi0", "pi05")
OPENVLA_NAMES = fixture_names("openvla")
GROOT_NAMES = groot_names()
OFT_NAMES = oft_names()
Computes = Callable[[Any], torch.Tensor]
By = Callable[[Computes], Computes]


@cache
def load(name: str, device: str = "cpu") -> Oracle:
    return Oracle.load(name, device)


@cache
def load_openvla(name: str, device: str) -> OpenVLAOracle:
    return OpenVLAOracle.load(name, device)


@cache
def load_groot(name: str, device: str) -> GrootOracle:
    return GrootOracle.load(name, device)


@cache
def run_of(name: str, layout: str, device: str) -> Run:
    return Run(load(name, device), layout)


@pytest.fixture(params=NAMES)
def oracle(request: pytest.FixtureRequest) -> Oracle:
    return load(request.param)


@pytest.fixture(params=["padded cpu", "packed cpu", pytest.param("packed cuda", marks=pytest.mark.gpu)])
def run(request: pytest.FixtureRequest, oracle: Oracle) -> Run:
    return run_of(oracle.name, *request.param.split())


@pytest.fixture(params=OPENVLA_NAMES)
def openvla(request: pytest.FixtureRequest, device: str) -> OpenVLAOracle:
    return load_openvla(request.param, device)


@pytest.fixture(params=["torch", "kernels"])
def by(request: pytest.FixtureRequest) -> By:
    """Has a run's residual streams computed by torch or by kernels, which are the references on a CPU; those
    of float64 are always torch's."""

    def by(what: Computes) -> Computes:
        def computed(run: Any) -> torch.Tensor:
            first = next(run.policy.model.parameters())
            fused = request.param == "kernels" and first.dtype != torch.float64
            with torch.inference_mode(), computing(ops_for(first.device) if fused else None):
                return what(run)

        return computed

    return by


@pytest.fixture(params=GROOT_NAMES)
def groot(request: pytest.FixtureRequest, device: str) -> GrootOracle:
    return load_groot(request.param, device)


def everywhere(names: list[str]) -> list[Any]:
    """On both devices."""
    on_gpu = (pytest.param((name, "cuda"), id=f"{name} cuda", marks=pytest.mark.gpu) for name in names)
    return [*(pytest.param((name, "cpu"), id=f"{name} cpu") for name in names), *on_gpu]


@pytest.fixture(params=everywhere(xvla_names()), scope="module")
def xvla(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> XVLAOracle:
    name, device = request.param
    return XVLAOracle.load(name, tmp_path_factory.mktemp("xvla") / "folder", device)


@pytest.fixture(params=everywhere(fastwam_names()), scope="module")
def fastwam(request: pytest.FixtureRequest) -> FastWAMOracle:
    return FastWAMOracle.load(*request.param)


@pytest.fixture(params=pi_fast_names(), scope="module")
def pi_fast(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PiFastOracle:
    return PiFastOracle.load(request.param, tmp_path_factory.mktemp("pi_fast") / "folder")


@cache
def load_mimic_video(run: str, device: str) -> MimicVideoOracle:
    return MimicVideoOracle.load(run, device)


@pytest.fixture(params=mimic_video_runs())
def mimic_video(request: pytest.FixtureRequest, device: str) -> MimicVideoOracle:
    return load_mimic_video(request.param, device)


@cache
def load_oft(name: str, device: str) -> OFTOracle:
    return OFTOracle.load(name, device)


@pytest.fixture(params=OFT_NAMES)
def oft(request: pytest.FixtureRequest, device: str) -> OFTOracle:
    return load_oft(request.param, device)


def test_there_is_something_to_compare_with() -> None:
    others = fastwam_names() or xvla_names() or pi_fast_names()
    assert NAMES or OPENVLA_NAMES or GROOT_NAMES or OFT_NAMES or others, (
        f"VLA_ORACLES: {FOLDER} holds no recording of pi0, pi05 or openvla (NAME.json, .npz, .safetensors), "
        "and no folder with oracle.json"
    )


def test_parameter_names_and_shapes(oracle: Oracle) -> None:
    ours = {name: list(tensor.shape) for name, tensor in oracle.model.state_dict().items()}
    recorded = {name: shape for name, (shape, _) in oracle.spec["keys"].items()}
    head, embedding = "paligemma.lm_head.weight", "paligemma.model.language_model.embed_tokens.weight"
    tied = {f"paligemma_with_expert.{name}" for name in (head, embedding)}
    assert tied & set(recorded), "the recording has neither name of the tied tensor"
    recorded |= dict.fromkeys(tied, next(shape for name, shape in recorded.items() if name in tied))
    recorded.pop("paligemma_with_expert.gemma_expert.lm_head.weight", None)
    assert ours == recorded


def test_prefix_embeddings(run: Run) -> None:
    agree(run, Run.embeddings, run.recorded("prefix_embs"))


def test_prefix_hidden_states(run: Run) -> None:
    agree(run, Run.hidden, run.recorded("prefix_out"))


@pytest.mark.parametrize("which", ["k", "v"])
def test_prefix_keys_and_values(run: Run, which: str) -> None:
    agree(run, lambda run: run.keys_or_values(which), run.recorded_kv(which))


def test_times_of_the_steps(oracle: Oracle) -> None:
    assert flow_times(oracle.spec["num_steps"], "openpi") == oracle["t"][:, 0].tolist()


def test_velocity_at_every_recorded_state(run: Run) -> None:
    agree(run, Run.velocities, run.oracle["v_t"])


def test_states_and_velocities_along_our_own_path(run: Run) -> None:
    agree(run, lambda run: run.path()[0], run.oracle["x_t"])
    agree(run, lambda run: run.path()[1], run.oracle["v_t"])


def test_actions(run: Run) -> None:
    agree(run, lambda run: run.actions("openpi"), run.oracle["actions"])


def test_greedy_text(run: Run) -> None:
    """In half precision the recorded token may be a near tie with another."""
    recorded, tokens = run.oracle["text_logits"], run.oracle["text_tokens"]
    agree(run, Run.scores, recorded)
    scores = run.scores()
    if run.exact:
        assert torch.equal(scores.argmax(dim=-1), tokens)
    behind = scores.max(dim=-1).values - scores.gather(-1, tokens[..., None])[..., 0]
    assert float(behind.max()) <= 2 * bound(run, Run.scores, recorded)


def test_guidance_weights(oracle: Oracle) -> None:
    delay, execution = int(oracle["rtc_delay"]), int(oracle["rtc_exec_horizon"])
    schedules = {schedule for _, schedule in oracle.guided()}
    assert schedules
    for schedule in schedules:
        ours = prefix_weights(schedule, delay, execution, oracle.spec["horizon"])
        assert distance(ours, oracle[f"rtc_weights_{schedule}"]) <= rounding(ours)


def test_guided_actions(run: Run) -> None:
    """The exact Jacobian is multiplied in at every step, times up to ten, so that for some weights a last bit
    grows a hundredfold, in the reference as in ours: no two programs agree better than rounding lets them.
    """
    for form, schedule in run.oracle.guided():

        def guided(run: Run, of: tuple[str, str] = (form, schedule)) -> torch.Tensor:
            return run.actions("lerobot", of)

        recorded = run.oracle[f"rtc_actions_{form}_{schedule}"]
        if form == "vjp":
            ours, noise = guided(run), distance(guided(run), guided(run.in_float64))
            assert distance(ours, recorded) <= max(bound(run, guided, recorded), 4 * noise), schedule
        else:
            agree(run, guided, recorded)


def test_float32_recordings_computed_in_bfloat16(oracle: Oracle) -> None:
    if not oracle.exact:
        return
    run, layers = (
        Run(oracle, "packed", Oracle.load(oracle.name, dtype="bfloat16").model),
        oracle.spec["depth"],
    )
    assert run.hidden().dtype == torch.bfloat16
    in_half(run.embeddings(), run.recorded("prefix_embs"), layers)
    in_half(run.hidden(), run.recorded("prefix_out"), layers)
    in_half(run.keys_or_values("k"), run.recorded_kv("k"), layers)
    in_half(run.keys_or_values("v"), run.recorded_kv("v"), layers)
    in_half(run.velocities(), oracle["v_t"], layers)
    in_half(run.actions("openpi"), oracle["actions"], layers)
    in_half(run.scores(), oracle["text_logits"], layers)
    for form, schedule in oracle.guided():
        if form != "vjp":
            ours = run.actions("lerobot", (form, schedule))
            in_half(ours, oracle[f"rtc_actions_{form}_{schedule}"], layers)


def test_openvla_parameter_names_and_shapes(openvla: OpenVLAOracle) -> None:
    """Ours are the recorded ones but those that no path reads."""
    ours = {name: list(tensor.shape) for name, tensor in openvla.model.state_dict().items()}
    recorded = {name: shape for name, (shape, _) in openvla.spec["keys"].items()}
    assert ours == {name: shape for name, shape in recorded.items() if not is_unused(name, openvla.config)}


def test_openvla_image_tokens(openvla: OpenVLAOracle) -> None:
    agree(openvla, OpenVLAOracle.features, openvla["vision"])
    agree(openvla, OpenVLAOracle.image_tokens, openvla["projected"])


@pytest.mark.parametrize("how", ["token by token", "in one pass"])
def test_openvla_scores_of_the_recorded_tokens(openvla: OpenVLAOracle, how: str) -> None:
    agree(openvla, lambda openvla: openvla.scores(how), openvla["logits"])
    scores, tokens = openvla.scores(how), openvla["generated"]
    behind = scores.max(dim=1).values - scores.gather(1, tokens[:, None])[:, 0]
    most = 0.0 if openvla.exact else 2 * bound(openvla, OpenVLAOracle.scores, openvla["logits"])
    assert float(behind.max()) <= most


def test_openvla_greedy_tokens(openvla: OpenVLAOracle) -> None:
    """In half precision a near tie may fall on either side, and then all that follows differs."""
    tokens = openvla["generated"].tolist()
    hidden, past = openvla.model.prefix(openvla.prefix())
    steps = list(decode(openvla.model, past, hidden[:, -1], len(tokens)))
    ours = [int(step.tokens) for step in steps]
    if openvla.exact:
        assert ours == tokens
    most = 2 * bound(openvla, OpenVLAOracle.scores, openvla["logits"])
    for step, token, chosen in zip(steps, tokens, ours, strict=True):
        assert float(step.logits[0, chosen] - step.logits[0, token]) <= most
        if chosen != token:
            break


def test_openvla_actions(openvla: OpenVLAOracle) -> None:
    values = openvla.action_tokens.to_values(openvla["generated"].cpu().numpy())
    assert values.tolist() == openvla["normalized"].tolist()
    assert openvla.action_tokens.centers.tolist() == openvla["bin_centers"].tolist()
    assert openvla.stats.unnormalize(values).tolist() == openvla["actions"].tolist()


def test_openvla_float32_recordings_computed_in_bfloat16(openvla: OpenVLAOracle, device: str) -> None:
    if not openvla.exact:
        return
    half, layers = OpenVLAOracle.load(openvla.name, device, "bfloat16"), openvla.config.prefix.depth
    in_half(half.features(), openvla["vision"], openvla.config.dino.depth)
    in_half(half.image_tokens(), openvla["projected"], openvla.config.dino.depth)
    in_half(half.scores("token by token"), openvla["logits"], layers)
    in_half(half.scores("in one pass"), openvla["logits"], layers)


def test_groot_inputs(groot: GrootOracle) -> None:
    inputs, recorded, prompt = groot.inputs(), groot["pixel_values"], groot.prompt()
    image = groot["input_ids"][0] == groot.policy.config.image_token
    assert prompt.image.tolist() == image.tolist()
    assert inputs.tokens.tolist() == groot["input_ids"][0][~image].tolist()
    if "position_ids" in groot.arrays:
        assert prompt.positions.tolist() == groot["position_ids"][1:].tolist()
    agree(groot, lambda groot: groot.prompt().embeddings, groot["lm_embeds"])
    assert inputs.more["embodiment"].tolist() == groot["embodiment_id"].tolist()
    assert distance(inputs.state, groot["state_normalised"][0, 0]) <= rounding(recorded)
    pixels, frames = inputs.images.flatten(), distinct(groot, recorded)
    assert distance(pixels.sort().values, frames.sort().values) <= rounding(recorded)


def distinct(groot: GrootOracle, recorded: torch.Tensor) -> torch.Tensor:
    """The recorded pixels, each once: N1.7's patches have two equal frames."""
    frames = recorded.unflatten(1, (3, 2, -1))[:, :, 0] if recorded.ndim == 2 else recorded
    return frames.flatten()


def test_groot_image_tokens_and_features(groot: GrootOracle, by: By) -> None:
    agree(groot, by(GrootOracle.image_tokens), groot["vision_tokens"].flatten(0, -2))
    agree(groot, by(GrootOracle.features), groot["vl_features"])


def test_groot_velocities(groot: GrootOracle, by: By) -> None:
    agree(groot, by(GrootOracle.velocities), groot["velocity"])


@pytest.mark.parametrize("frame", ["", "second_"])
def test_groot_actions(groot: GrootOracle, frame: str) -> None:
    if frame and not groot.has_units:
        pytest.skip("only the first frame's state is recorded as the network gets it")
    agree(groot, lambda groot: groot.raw(frame), groot[f"{frame}action_pred"])
    if groot.has_units:
        agree(groot, lambda groot: groot.actions(frame), groot[f"{frame}actions"][0])


def test_groot_float32_recordings_computed_in_bfloat16(groot: GrootOracle, device: str, by: By) -> None:
    if groot.policy.model.dtype != torch.float32:
        return
    half = GrootOracle.load(groot.name, device, "bfloat16")
    tokens = groot["vision_tokens"].flatten(0, -2)
    in_half(by(GrootOracle.image_tokens)(half), tokens, groot.policy.config.vision.depth)
    in_half(by(GrootOracle.features)(half), groot["vl_features"], groot.layers)
    in_half(by(GrootOracle.velocities)(half), groot["velocity"], groot.layers)
    in_half(by(GrootOracle.raw)(half), groot["action_pred"], groot.layers)


def test_xvla_inputs(xvla: XVLAOracle) -> None:
    inputs = xvla.inputs
    assert inputs.tokens.tolist() == xvla["token_ids"][0].tolist()
    assert inputs.more["domain"].tolist() == xvla["model_in.domain_id"].tolist()
    assert torch.equal(inputs.state, xvla["model_in.proprio"][0])
    assert distance(inputs.images, xvla["model_in.image_input"][0, : len(inputs.images)]) < 1e-6


def test_xvla_image_tokens_and_features(xvla: XVLAOracle) -> None:
    agree(xvla, XVLAOracle.image_tokens, xvla["vision.projected"])
    agree(xvla, XVLAOracle.features, xvla["prefix.vlm_features"])


def test_xvla_predicts_the_clean_actions_of_every_step(xvla: XVLAOracle, by: By) -> None:
    agree(xvla, by(XVLAOracle.predictions), xvla["steps.predicted_action"])


def test_xvla_actions(xvla: XVLAOracle) -> None:
    agree(xvla, XVLAOracle.sampled, xvla["actions_model"])


def test_xvla_actions_of_robots_of_two_domains_in_one_batch(xvla: XVLAOracle, by: By) -> None:
    recorded = xvla["batch2.actions_model"]
    agree(xvla, by(lambda xvla: xvla.sampled("batch2.noise", "batch2.domain_id")), recorded)


def test_xvla_float32_recordings_computed_in_bfloat16(xvla: XVLAOracle, tmp_path: Path, by: By) -> None:
    half = XVLAOracle.load(xvla.name, tmp_path / "folder", str(xvla.policy.device), "bfloat16")
    in_half(half.image_tokens(), xvla["vision.projected"], half.layers)
    in_half(half.features(), xvla["prefix.vlm_features"], half.layers)
    in_half(by(XVLAOracle.sampled)(half), xvla["actions_model"], half.layers)


def test_fastwam_inputs(fastwam: FastWAMOracle) -> None:
    inputs, real = fastwam.inputs, fastwam["token_mask"][0].bool()
    assert inputs.tokens.tolist() == fastwam["token_ids"][0][real].tolist()
    assert distance(inputs.state, fastwam["state_normalized"][0]) < 1e-6
    assert distance(inputs.images, fastwam["input_image"] * 2.0 - 1.0) < 1e-6


def test_fastwam_text_latents_and_video(fastwam: FastWAMOracle, by: By) -> None:
    real = fastwam["token_mask"][0].bool()
    agree(fastwam, FastWAMOracle.features, fastwam["text.context"][0][real])
    agree(fastwam, FastWAMOracle.latents, fastwam["vae.latents"][0, :, 0])
    agree(fastwam, by(FastWAMOracle.video), fastwam.recorded_video())


def test_fastwam_velocities_and_actions(fastwam: FastWAMOracle, by: By) -> None:
    agree(fastwam, by(FastWAMOracle.velocities), fastwam["steps.velocity"])
    agree(fastwam, by(FastWAMOracle.sampled), fastwam["actions_model"][0])
    actions = fastwam.policy.actions(fastwam.sampled(), fastwam.arrays["state"].cpu().numpy())
    recorded = fastwam["actions"][0].cpu()
    assert distance(torch.from_numpy(actions), recorded) <= rounding(recorded)


def test_fastwam_float32_recordings_computed_in_bfloat16(fastwam: FastWAMOracle, device: str, by: By) -> None:
    half = FastWAMOracle.load(fastwam.name, device, "bfloat16")
    real = half["token_mask"][0].bool()
    in_half(half.features(), half["text.context"][0][real], half.policy.config.text.depth)
    in_half(half.latents(), half["vae.latents"][0, :, 0], half.layers)
    in_half(by(FastWAMOracle.video)(half), half.recorded_video(), half.layers)
    in_half(by(FastWAMOracle.sampled)(half), half["actions_model"][0], half.layers)


@pytest.mark.parametrize("sample", SAMPLES)
def test_pi_fast_prompt_and_pixels(pi_fast: PiFastOracle, sample: str) -> None:
    inputs = pi_fast.policy.inputs(pi_fast.observation(sample))
    recorded, valid = pi_fast[f"{sample}prompt_tokens"][0], pi_fast[f"{sample}prompt_mask"][0]
    assert inputs.tokens[:-1].tolist() == recorded[valid].tolist()
    assert sample or distance(inputs.images, pi_fast["pixel_values"][0]) < 1e-6


def test_pi_fast_scores_of_every_token(pi_fast: PiFastOracle) -> None:
    agree(pi_fast, PiFastOracle.scores, pi_fast["logits"])


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("sample", SAMPLES)
def test_pi_fast_acts_as_recorded(pi_fast: PiFastOracle, sample: str, fast: bool) -> None:
    engine = Engine(pi_fast.policy, fast=fast)
    with engine.observe(pi_fast.observation(sample)) as prefix:
        chunk = engine.act(prefix)
    assert np.abs(chunk.actions - pi_fast[f"{sample}actions"][0].numpy()).max() < 1e-5


def test_pi_fast_float32_recordings_computed_in_bfloat16(pi_fast: PiFastOracle, tmp_path: Path) -> None:
    half = PiFastOracle.load(pi_fast.name, tmp_path / "folder", "bfloat16")
    in_half(half.scores().float(), pi_fast["logits"], half.layers)


def test_pi_fast_tokens_of_actions(pi_fast: PiFastOracle) -> None:
    fast, horizon, dims = pi_fast.policy.fast, *pi_fast["fast_chunks"].shape[1:]
    assert fast is not None
    for chunk, padded, decoded in zip(
        pi_fast["fast_chunks"], pi_fast["fast_tokens"], pi_fast["fast_decoded"], strict=True
    ):
        tokens = [token for token in padded.tolist() if token >= 0]
        assert fast.encode(chunk.numpy()) == tokens
        assert np.abs(fast.decode(tokens, horizon, dims) - decoded.numpy()).max() < 1e-9
    truncated = fast.decode(pi_fast["fast_truncated_tokens"].tolist(), horizon, dims)
    assert np.abs(truncated - pi_fast["fast_truncated_decoded"].numpy()).max() < 1e-9


def test_openvla_oft_from_pixels_to_actions(oft: OFTOracle, by: By) -> None:
    agree(oft, by(OFTOracle.image_tokens), oft["projected"])
    agree(oft, by(OFTOracle.hidden), oft["lm_final"])
    agree(oft, by(OFTOracle.raw), oft["actions_normalised"])


def test_openvla_oft_words_state_and_units(oft: OFTOracle) -> None:
    words, prompt = oft.words().tolist(), oft["input_ids"].tolist()
    assert words[: len(prompt)] == prompt and words == oft["sequence_tokens"][0, : len(words)].tolist()
    state = oft.policy.normalized_state(oft.arrays["state"])
    assert distance(state, oft["state_normalised"][0].cpu()) <= rounding(state)
    actions = oft.policy.actions(oft["actions_normalised"][0], oft.arrays["state"])
    recorded = oft["actions"].cpu().float()
    assert distance(torch.from_numpy(actions), recorded) <= rounding(recorded)


def test_openvla_oft_pictures(oft: OFTOracle) -> None:
    size = oft.policy.image_size

    def planes(name: str) -> torch.Tensor:
        return oft[name].permute(2, 0, 1)[None].double()

    for index in range(len(oft.policy.config.image_names)):
        if f"decoded_{index}" in oft.arrays:
            assert torch.equal(through_jpeg(planes(f"image_{index}")), planes(f"decoded_{index}"))
            resized = resize_lanczos(planes(f"decoded_{index}"), size)
            assert torch.equal(resized, planes(f"resized_{index}"))
        assert torch.equal(crop(planes(f"resized_{index}")), planes(f"cropped_{index}"))
        assert torch.equal(prepared([oft[f"image_{index}"]], size), planes(f"cropped_{index}"))


def test_openvla_oft_in_bfloat16(oft: OFTOracle, device: str, by: By) -> None:
    half, config = OFTOracle.load(oft.name, device, "bfloat16"), oft.policy.config
    in_half(by(OFTOracle.image_tokens)(half), oft["projected"], config.dino.depth)
    in_half(by(OFTOracle.hidden)(half), oft["lm_final"], config.prefix.depth)
    in_half(by(OFTOracle.raw)(half), oft["actions_normalised"], config.prefix.depth)


def test_mimic_video_words_state_and_frames(mimic_video: MimicVideoOracle) -> None:
    inputs, words = mimic_video.inputs, mimic_video["token_ids"][0]
    assert inputs.tokens.tolist() == words[mimic_video["token_mask"][0].bool()].tolist()
    state = mimic_video["state_normalized"][0, 0]
    assert distance(inputs.state, state) <= rounding(state)
    if "pixels" in mimic_video.arrays:
        assert torch.equal(inputs.images, mimic_video["pixels"][0].transpose(0, 1))


def test_mimic_video_text_latents_and_features(mimic_video: MimicVideoOracle, by: By) -> None:
    words = int(mimic_video["token_mask"].sum())
    agree(mimic_video, MimicVideoOracle.text, mimic_video["text.embedding"][0, :words])
    agree(mimic_video, MimicVideoOracle.latents, mimic_video["vae.latents"])
    agree(mimic_video, by(MimicVideoOracle.features), mimic_video["hidden"])
    if "vae_video.pixels" in mimic_video.arrays:
        longer = mimic_video["vae_video.pixels"][0].transpose(0, 1)
        agree(mimic_video, lambda run: run.policy.model.vae(longer)[None], mimic_video["vae_video.latents"])


def test_mimic_video_velocities_and_actions(mimic_video: MimicVideoOracle, by: By) -> None:
    agree(mimic_video, by(MimicVideoOracle.velocities), mimic_video["action.network_out"][:, :, 1:])
    agree(mimic_video, by(MimicVideoOracle.actions), mimic_video["actions"])


def test_mimic_video_chunks_of_one_video_in_the_engine(mimic_video: MimicVideoOracle) -> None:
    engine = Engine(mimic_video.policy, steps=mimic_video.spec["sizes"]["steps"])
    noise, recorded = mimic_video["noise_action"][0].cpu().numpy(), mimic_video["actions"][0].cpu()
    with engine.observe(mimic_video.observation) as prefix:
        for _ in range(2):
            actions = torch.from_numpy(engine.act(prefix, noise=noise).actions)
            assert distance(actions, recorded) <= (rounding(recorded) if mimic_video.exact else 0.1)


def test_mimic_video_in_bfloat16(mimic_video: MimicVideoOracle, device: str, by: By) -> None:
    half = MimicVideoOracle.load(mimic_video.name, device, "bfloat16")
    in_half(half.text(), mimic_video["text.embedding"][0, : len(half.inputs.tokens)], half.layers)
    in_half(half.latents(), mimic_video["vae.latents"], half.layers)
    in_half(by(MimicVideoOracle.features)(half), mimic_video["hidden"], half.layers)
    in_half(by(MimicVideoOracle.actions)(half), mimic_video["actions"], half.layers)
