"""Our models against recordings of the unmodified references: openpi (lerobot for guidance) and OpenVLA.

pi0 and pi0.5 are computed twice: padded, a batch with masks as the reference ran it, and packed, one sample
at a time with absent cameras and padding left out, which is how the engine runs. OpenVLA's scores are
computed token by token and in one pass. All must meet the recording: in float32 within 1e-5, greedy tokens
exactly. See oracle.py for where recordings come from.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache, cached_property

import pytest
import torch
from openvla_oracle import OpenVLAOracle
from oracle import FOLDER, Oracle, fixture_names, read_arrays
from torch import Tensor

from vla_accel_ros.models.decoding import decode
from vla_accel_ros.models.gemma import KV
from vla_accel_ros.models.openvla import is_unused
from vla_accel_ros.models.pi import Pi
from vla_accel_ros.models.rtc import Guidance, prefix_weights
from vla_accel_ros.models.sampling import flow_times, sample

FLOAT32 = 1e-5
# bfloat16 keeps 8 bits, so one rounding is up to 2^-9 of a number; a few of them at worst, one on average,
# relative to the largest number of an array.
BFLOAT16 = 2.0**-5
BFLOAT16_MEAN = 1 / 8
NAMES = fixture_names("pi0", "pi05")
OPENVLA_NAMES = fixture_names("openvla")
Velocity = Callable[[Tensor, float], Tensor]


class Run:
    """Our model on a recording's inputs, in one of the two layouts."""

    def __init__(self, oracle: Oracle, layout: str, model: Pi | None = None) -> None:
        self.oracle, self.layout = oracle, layout
        self.model = oracle.model if model is None else model
        self.valid = oracle["prefix_pad_mask"]
        self.parts = (
            [slice(0, oracle.batch)] if layout == "padded" else [slice(b, b + 1) for b in range(oracle.batch)]
        )

    @cached_property
    def embeddings(self) -> Tensor:
        """[B, T, W], every camera and every token."""
        images = self.oracle.images().to(self.model.action_in_proj.weight.dtype)
        image = self.model.encode(images.flatten(0, 1)).unflatten(0, images.shape[:2]).flatten(1, 2)
        return torch.cat((image, self.model.embed_tokens(self.oracle["tokens"])), dim=1)

    @cached_property
    def prefixes(self) -> list[tuple[Tensor, KV, Tensor | None]]:
        """(hidden, KV, mask or None if nothing is masked) of each part."""
        if self.layout == "padded":
            valid = self.valid
            attend = valid[:, None, :] & valid[:, :, None]
            hidden, kv = self.model.prefix(self.embeddings, attend, valid.cumsum(dim=1) - 1)
            return [(hidden, kv, valid)]
        packed = (self.embeddings[part][:, self.valid[part][0]] for part in self.parts)
        return [(*self.model.prefix(embs), None) for embs in packed]

    def select(self, part: slice, recorded: Tensor) -> Tensor:
        """The valid tokens of a recorded [B, T, ...], of one part, as [tokens, ...]."""
        return recorded[part][self.valid[part]]

    def velocity(self, index: int) -> Velocity:
        """The flow field of part `index`, in the dtype of x."""
        _, kv, mask = self.prefixes[index]
        state = self.oracle["state"][self.parts[index]].to(self.model.action_in_proj.weight.dtype)

        def velocity(x: Tensor, t: float) -> Tensor:
            return self.model.velocity(x, torch.full((len(x),), t).to(x), state, kv, mask)

        return velocity

    def actions(self, time_rule: str, guidance: tuple[str, str] | None = None) -> Tensor:
        """Sampled actions [B, H, A], guided by the recorded previous chunk if asked."""
        oracle, out = self.oracle, []
        for index, part in enumerate(self.parts):
            velocity = self.velocity(index)
            noise = oracle["noise"][part].to(self.model.action_in_proj.weight.dtype)
            if guidance is not None:
                velocity = Guidance(
                    previous=oracle["rtc_prev"][part],
                    delay=int(oracle["rtc_delay"]),
                    execution=int(oracle["rtc_exec_horizon"]),
                    schedule=guidance[1],
                    jacobian="exact" if guidance[0] == "vjp" else "identity",
                ).guide(velocity, noise)
            out.append(sample(velocity, noise, oracle.spec["num_steps"], time_rule).actions)
        return torch.cat(out)


class Path:
    """A velocity that remembers where it was asked and what it said."""

    def __init__(self, velocity: Velocity) -> None:
        self.velocity = velocity
        self.states: list[Tensor] = []
        self.velocities: list[Tensor] = []

    def __call__(self, x: Tensor, t: float) -> Tensor:
        self.states.append(x)
        self.velocities.append(self.velocity(x, t))
        return self.velocities[-1]


@cache
def load(name: str, device: str = "cpu") -> Oracle:
    return Oracle.load(name, device)


@cache
def load_openvla(name: str, device: str) -> OpenVLAOracle:
    return OpenVLAOracle.load(name, device)


@cache
def run_of(name: str, layout: str, device: str) -> Run:
    return Run(load(name, device), layout)


@pytest.fixture(params=NAMES)
def oracle(request: pytest.FixtureRequest) -> Oracle:
    return load(request.param)


@pytest.fixture(params=["padded cpu", "packed cpu", pytest.param("packed cuda", marks=pytest.mark.gpu)])
def run(request: pytest.FixtureRequest, oracle: Oracle) -> Run:
    return run_of(oracle.name, *request.param.split())


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=OPENVLA_NAMES)
def openvla(request: pytest.FixtureRequest, device: str) -> OpenVLAOracle:
    return load_openvla(request.param, device)


@pytest.fixture(autouse=True)
def without_gradients() -> object:
    with torch.no_grad():
        yield


def distance(ours: Tensor, recorded: Tensor) -> float:
    assert ours.shape == recorded.shape
    assert torch.isfinite(ours).all()
    return float((ours.double() - recorded.double()).abs().max())


def tolerance(oracle: Oracle | OpenVLAOracle, recorded: Tensor) -> float:
    return FLOAT32 if oracle.exact else bfloat16_rounding(oracle.name) * max(1.0, float(recorded.abs().max()))


@cache
def bfloat16_rounding(name: str) -> float:
    """Twice what separates the reference's own bfloat16 and float32 recordings, where both are there."""
    twin = name.replace("bfloat16", "float32")
    if twin not in NAMES + OPENVLA_NAMES or twin == name:
        return BFLOAT16
    pairs = zip(_comparable(name), _comparable(twin), strict=True)
    return 2 * max(distance(half, full) / max(1.0, float(full.abs().max())) for half, full in pairs)


def _comparable(name: str) -> list[Tensor]:
    """What two recordings computed from the same numbers: not the scores after their first token differs."""
    arrays = read_arrays(name)
    if name in OPENVLA_NAMES:
        return [arrays["projected"], arrays["logits"][:1]]
    return [arrays["v_t"], arrays["actions"]]


def check(oracle: Oracle | OpenVLAOracle, ours: Tensor, recorded: Tensor) -> None:
    bound = tolerance(oracle, recorded)
    assert distance(ours, recorded) <= bound
    if not oracle.exact:
        assert float((ours.float() - recorded.float()).abs().mean()) <= bound * BFLOAT16_MEAN


def test_there_is_something_to_compare_with() -> None:
    assert NAMES or OPENVLA_NAMES, (
        f"VLA_ORACLES: {FOLDER} holds no recording of pi0, pi05 or openvla (NAME.json, .npz, .safetensors)"
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
    for part in run.parts:
        recorded = run.select(part, run.oracle["prefix_embs"])
        check(run.oracle, run.select(part, run.embeddings), recorded)


def test_prefix_hidden_states(run: Run) -> None:
    for part, (hidden, _, mask) in zip(run.parts, run.prefixes, strict=True):
        ours = hidden[mask] if mask is not None else hidden[0]
        check(run.oracle, ours, run.select(part, run.oracle["prefix_out"]))


@pytest.mark.parametrize("which", ["k", "v"])
def test_prefix_keys_and_values(run: Run, which: str) -> None:
    for part, (_, kv, mask) in zip(run.parts, run.prefixes, strict=True):
        by_token = getattr(kv, which).permute(1, 3, 0, 2, 4)  # [B, T, layers, kv_heads, head_dim]
        recorded = run.select(part, run.oracle[f"prefix_{which}"].permute(1, 3, 0, 2, 4))
        check(run.oracle, by_token[mask] if mask is not None else by_token[0], recorded)


def test_times_of_the_steps(oracle: Oracle) -> None:
    assert flow_times(oracle.spec["num_steps"], "openpi") == oracle["t"][:, 0].tolist()


def test_velocity_at_every_recorded_state(run: Run) -> None:
    for index, part in enumerate(run.parts):
        velocity = run.velocity(index)
        for t, x, v in zip(run.oracle["t"], run.oracle["x_t"], run.oracle["v_t"], strict=True):
            check(run.oracle, velocity(x[part], float(t[0])), v[part])


def test_states_and_velocities_along_our_own_path(run: Run) -> None:
    for index, part in enumerate(run.parts):
        path = Path(run.velocity(index))
        sample(path, run.oracle["noise"][part], run.oracle.spec["num_steps"], "openpi")
        check(run.oracle, torch.stack(path.states), run.oracle["x_t"][:, part])
        check(run.oracle, torch.stack(path.velocities), run.oracle["v_t"][:, part])


def test_actions(run: Run) -> None:
    check(run.oracle, run.actions("openpi"), run.oracle["actions"])


def test_greedy_text(run: Run) -> None:
    """Decoding continues each sample's own prompt, from its last valid token."""
    oracle, model = run.oracle, run.model
    for index, part in enumerate(run.parts):
        hidden, kv, mask = run.prefixes[index]
        for b in range(part.stop - part.start):
            keep = slice(None) if mask is None else mask[b]
            past = KV(kv.k[:, b : b + 1, :, keep], kv.v[:, b : b + 1, :, keep])
            last, tail = hidden[b : b + 1, keep][:, -1:], None
            assert past.k.shape[3] == int(oracle["text_n_valid"][part.start + b])
            logits = oracle["text_logits"][part.start + b]
            for token, scores in zip(oracle["text_tokens"][part.start + b], logits, strict=True):
                ours = model.logits(last)[0, 0]
                check(oracle, ours, scores)
                if oracle.exact:
                    assert int(ours.argmax()) == int(token)
                else:
                    assert float(ours.max() - ours[token]) <= 2 * tolerance(oracle, scores)
                last, new = model.extend(model.embed_tokens(token.view(1, 1)), past, tail=tail)
                tail = (
                    new
                    if tail is None
                    else KV(*(torch.cat(pair, dim=3) for pair in zip(tail, new, strict=True)))
                )


def test_guidance_weights(oracle: Oracle) -> None:
    delay, execution = int(oracle["rtc_delay"]), int(oracle["rtc_exec_horizon"])
    schedules = {schedule for _, schedule in oracle.guided()}
    assert schedules
    for schedule in schedules:
        ours = prefix_weights(schedule, delay, execution, oracle.spec["horizon"])
        assert distance(ours, oracle[f"rtc_weights_{schedule}"]) <= FLOAT32


def test_guided_actions(run: Run) -> None:
    for form, schedule in run.oracle.guided():
        ours = run.actions("lerobot", (form, schedule))
        recorded = run.oracle[f"rtc_actions_{form}_{schedule}"]
        bound = tolerance(run.oracle, recorded)
        if form == "vjp" and distance(ours, recorded) > bound:
            bound = max(bound, 4 * rounding_of_guided_actions(run, ours, schedule))
        assert distance(ours, recorded) <= bound, (form, schedule)


def rounding_of_guided_actions(run: Run, ours: Tensor, schedule: str) -> float:
    """How far rounding alone moves the exact-Jacobian variant: our result against our own in float64.

    The Jacobian is multiplied in at every step, times up to ten, so that for some weights a last bit grows a
    hundredfold, in the reference as in ours. No two float32 programs agree better than that.
    """
    twin = Run(run.oracle, run.layout, copy.deepcopy(run.model).double())
    return distance(ours, twin.actions("lerobot", ("vjp", schedule)))


def test_openvla_parameter_names_and_shapes(openvla: OpenVLAOracle) -> None:
    """Ours are the recorded ones but those that no path reads."""
    ours = {name: list(tensor.shape) for name, tensor in openvla.model.state_dict().items()}
    recorded = {name: shape for name, (shape, _) in openvla.spec["keys"].items()}
    assert ours == {name: shape for name, shape in recorded.items() if not is_unused(name, openvla.config)}


def test_openvla_image_tokens(openvla: OpenVLAOracle) -> None:
    features = openvla.model.vision_backbone(openvla["pixel_values"])
    check(openvla, features, openvla["vision"])
    check(openvla, openvla.model.encode(openvla["pixel_values"]), openvla["projected"])


@pytest.mark.parametrize("how", ["token by token", "in one pass"])
def test_openvla_scores_of_the_recorded_tokens(openvla: OpenVLAOracle, how: str) -> None:
    model, tokens = openvla.model, openvla["generated"]
    words = model.embed_tokens(tokens[None, :-1])
    if how == "in one pass":
        hidden, _ = model.prefix(torch.cat((openvla.prefix(), words), dim=1))
        hidden = hidden[:, -len(tokens) :]
    else:
        hidden, past = model.prefix(openvla.prefix())
        rows, tail = [hidden[:, -1:]], None
        for word in words.split(1, dim=1):
            hidden, new = model.extend(word, past, tail=tail)
            tail = new if tail is None else KV(*(torch.cat(pair, dim=3) for pair in zip(tail, new)))
            rows.append(hidden)
        hidden = torch.cat(rows, dim=1)
    ours = model.logits(hidden[0])
    check(openvla, ours, openvla["logits"])
    behind = ours.max(dim=1).values - ours.gather(1, tokens[:, None])[:, 0]
    assert float(behind.max()) <= (0 if openvla.exact else 2 * tolerance(openvla, openvla["logits"]))


def test_openvla_greedy_tokens(openvla: OpenVLAOracle) -> None:
    """In half precision a near tie may fall on either side, and then all that follows differs."""
    tokens = openvla["generated"].tolist()
    hidden, past = openvla.model.prefix(openvla.prefix())
    steps = list(decode(openvla.model, past, hidden[:, -1], len(tokens)))
    ours = [int(step.tokens) for step in steps]
    if openvla.exact:
        assert ours == tokens
    for step, token, chosen in zip(steps, tokens, ours, strict=True):
        gap = float(step.logits[0, chosen] - step.logits[0, token])
        assert gap <= 2 * tolerance(openvla, openvla["logits"])
        if chosen != token:
            break


def test_openvla_actions(openvla: OpenVLAOracle) -> None:
    values = openvla.action_tokens.to_values(openvla["generated"].cpu().numpy())
    assert values.tolist() == openvla["normalized"].tolist()
    assert openvla.action_tokens.centers.tolist() == openvla["bin_centers"].tolist()
    assert openvla.stats.unnormalize(values).tolist() == openvla["actions"].tolist()
