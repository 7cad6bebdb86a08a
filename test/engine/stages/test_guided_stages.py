"""Guided and committed chunks of captured steps are those of the plain model; free ones keep their bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from builders import make_config, make_model
from seated import Seated, flow_of
from torch import Tensor

from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.stages.denoise.captured_seats import CapturedSeats
from vla_accel_ros.engine.stages.denoise.seats import PlainSeats, Seats
from vla_accel_ros.engine.stages.denoise.wide import MOST_NARROW
from vla_accel_ros.engine.stages.stages import Stages, powers_of_two
from vla_accel_ros.models.flow.committed import Committed
from vla_accel_ros.models.flow.rtc import SCHEDULES, Guidance, Inpainting
from vla_accel_ros.models.flow.sampling import Flow, sample
from vla_accel_ros.models.flow.solver import EULER, SOLVERS
from vla_accel_ros.models.layers.packed import Span

STEPS = 5
LENGTHS = (7, 4, 9)
Given = Guidance | Committed | None

assert_near = partial(
    torch.testing.assert_close, rtol=1e-4, atol=2e-5 if not torch.cuda.is_available() else 1e-4
)


@pytest.fixture(params=SOLVERS)
def solver(request: pytest.FixtureRequest) -> str:
    return request.param


class Setting:
    """A model, its stages, three prefixes in the pool, and a start for a chunk on each."""

    def __init__(
        self, kind: str, device: str = "cpu", time_rule: str = "openpi", solver: str = EULER
    ) -> None:
        self.solver = solver
        self.config, self.rule, self.device = make_config(kind), time_rule, torch.device(device)
        self.model = make_model(self.config).to(device)
        self.pool = KVPool(self.config.prefix, 4, self.config.max_tokens, self.device, torch.float32)
        self.stages = Stages(self.model, self.pool, time_rule, solver=solver)
        made = torch.Generator().manual_seed(5)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=made).to(device)

        with torch.inference_mode():
            for slot, length in enumerate(LENGTHS):
                self.model.prefix(draw(1, length, self.config.prefix.width), out=self.pool.view(slot, length))
        self.noise = draw(3, self.config.horizon, self.config.action_dim)
        self.state = draw(3, self.config.state_dim)
        self.previous = draw(self.config.horizon, self.config.action_dim)

    def plain(self, row: int, given: Given) -> Flow:
        """A chunk by the plain model."""
        noise, state = self.noise[row : row + 1], self.state[row : row + 1]
        kv = self.pool.view(row, LENGTHS[row])

        def at(x: Tensor, t: Tensor) -> Tensor:
            return self.model.velocity(x, t, state, kv)

        def velocity(x: Tensor, t: float) -> Tensor:
            return at(x, torch.full((1,), t, device=x.device))

        with torch.inference_mode():
            if isinstance(given, Committed):
                return sample(given.hold(at), given.begin(noise), STEPS, self.rule, self.solver)
            if given is None:
                return sample(velocity, noise, STEPS, self.rule, self.solver)
            return sample(
                velocity, noise, STEPS, self.rule, self.solver, lambda field: given.guide(field, noise)
            )

    def of(self, given: Given) -> Inpainting | None:
        shape = self.config.horizon, self.config.action_dim
        return None if given is None else Inpainting.of(given, *shape)

    def act(self, rows: Sequence[int], given: Sequence[Given] | None, host: bool = False) -> Flow:
        noise, state = self.noise[list(rows)], self.state[list(rows)]
        guides = None if given is None else [self.of(one) for one in given]
        lengths = [LENGTHS[row] for row in rows]
        if host:
            noise, state = noise.cpu(), state.cpu()
        return self.stages.act(noise, state, list(rows), lengths, STEPS, guides)

    def seats(self, which: str, count: int = 3) -> Seats:
        if which.startswith("plain"):
            together = which == "plain together"
            return PlainSeats(self.model, count, STEPS, self.rule, together, solver=self.solver)
        return CapturedSeats(self.stages, count, STEPS, wide=which == "many rows")

    def begin(self, batch: Seated, row: int, given: Given, key: int = 0) -> None:
        noise, state = self.noise[row : row + 1], self.state[row : row + 1]
        guide = self.of(given)
        batch.begin(key, noise, state if self.config.kind == "pi0" else None, self.span(row), guide)

    def span(self, row: int) -> Span:
        return self.pool.span(row, 0, LENGTHS[row])

    def several(self) -> tuple[Given, ...]:
        """One of each kind."""
        return (
            Guidance(self.previous[:6], 2, 5, max_weight=STEPS),
            None,
            Committed(self.previous[:3]),
        )


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("most", [float(STEPS), 10.0])
def test_a_guided_chunk_is_the_plain_models(
    kind: str, schedule: str, most: float, device: str, solver: str
) -> None:
    setting = Setting(kind, device, "openpi" if most == STEPS else "lerobot", solver)
    guidance = Guidance(setting.previous[:6], 2, 5, schedule, max_weight=most)
    ours, plain = setting.act([0], [guidance]), setting.plain(0, guidance)
    assert_near(ours.actions, plain.actions)
    assert_near(ours.update, plain.update)
    if schedule != "ZEROS":
        assert not torch.allclose(ours.actions, setting.plain(0, None).actions, atol=1e-2)


@pytest.mark.parametrize("count", [1, 3, 7])
@pytest.mark.parametrize("rule", ["openpi", "lerobot"])
def test_a_chunk_with_committed_actions_is_the_plain_models(
    kind: str, count: int, rule: str, device: str, solver: str
) -> None:
    setting = Setting(kind, device, rule, solver)
    committed = Committed(setting.previous[:count])
    ours, plain = setting.act([1], [committed]), setting.plain(1, committed)
    assert torch.equal(ours.actions[0, :count], setting.previous[:count])
    assert (ours.update[0, :count] == 0.0).all()
    assert_near(ours.actions, plain.actions)
    assert_near(ours.update, plain.update)
    free = setting.act([1], None)
    assert not torch.allclose(ours.actions[0, count:], free.actions[0, count:], atol=1e-3)


def test_guides_without_weight_or_actions_leave_a_chunk_free_to_the_bit(
    kind: str, device: str, solver: str
) -> None:
    setting = Setting(kind, device, solver=solver)
    free = setting.act([0], None)
    for given in (Guidance(setting.previous, 0, 0), Committed(setting.previous[:0])):
        ours = setting.act([0], [given])
        assert torch.equal(ours.actions, free.actions)
        assert torch.equal(ours.update, free.update)


@pytest.mark.parametrize("host", [False, True], ids=["from the device", "from the host"])
@pytest.mark.parametrize("most", [MOST_NARROW, 0], ids=["few rows", "many rows"])
def test_a_batch_may_hold_chunks_of_every_kind(
    kind: str, host: bool, most: int, device: str, solver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vla_accel_ros.engine.stages.making.MOST_NARROW", most)
    setting = Setting(kind, device, solver=solver)
    given = setting.several()
    free = setting.act([0, 1, 2], None, host)
    for _ in range(2):
        ours = setting.act([0, 1, 2], given, host)
        for row, one in enumerate(given):
            plain = setting.plain(row, one)
            assert_near(ours.actions[row], plain.actions[0])
            assert_near(ours.update[row], plain.update[0])
        # On a GPU committed actions give every token a sequence of its own, which rounds differently.
        if device == "cpu":
            torch.testing.assert_close(ours.actions[1], free.actions[1], rtol=0.0, atol=0.0)
        else:
            assert_near(ours.actions[1], free.actions[1])
        again = setting.act([0, 1, 2], None, host)
        assert torch.equal(again.actions, free.actions), "what guided the last call guides no other"


@pytest.mark.parametrize("which", ["plain", "plain together", "few rows", "many rows"])
def test_staggered_chunks_of_every_kind_are_to_the_bit_what_each_is_alone(
    kind: str, which: str, device: str, solver: str
) -> None:
    setting = Setting(kind, device, solver=solver)
    seats, kinds = setting.seats(which), setting.several()
    batch = Seated(seats)
    given = {number: (number % 3, kinds[(number + number // 3) % 3]) for number in range(7)}
    for number, (row, one) in given.items():
        while batch.full:
            batch.step()
        setting.begin(batch, row, one, number)
        batch.step()
    while batch.under_way:
        batch.step()
    for number, (row, one) in given.items():
        alone = Seated(seats)
        setting.begin(alone, row, one)
        alone.run()
        done = alone.flows[0]
        if which == "plain together":
            assert_near(batch.flows[number], done)
        else:
            assert torch.equal(batch.flows[number].actions, done.actions)
            assert torch.equal(batch.flows[number].update, done.update)
        plain = setting.plain(row, one)
        assert_near(batch.flows[number], plain)
        if which == "plain":
            assert torch.equal(batch.flows[number].actions, plain.actions)
        if isinstance(one, Committed):
            assert torch.equal(batch.flows[number].actions[0, :3], one.actions)


def test_fewer_seats_are_computed_where_fewer_are_taken(kind: str, device: str, solver: str) -> None:
    """Chunks come and go, so that every size has its turn with every one of them."""
    setting, kinds = Setting(kind, device, solver=solver), Setting(kind, device, solver=solver).several()
    assert powers_of_two(6) == [1, 2, 4] and powers_of_two(8) == [1, 2, 4] and powers_of_two(1) == []
    seats = CapturedSeats(setting.stages, 6, STEPS, by_load=True)
    sizes: set[int] = set()
    for step in seats._sizes:
        step.run = partial(counted, step.run, sizes, len(step.x))  # type: ignore[method-assign]
    batch = Seated(seats)
    given = {number: (number % 3, kinds[(number + number // 3) % 3]) for number in range(9)}
    for number, (row, one) in given.items():
        while batch.full:
            batch.step()
        setting.begin(batch, row, one, number)
        if number in (0, 1, 3):
            batch.step()
    while batch.under_way:
        batch.step()
    for number, (row, one) in given.items():
        assert_near(batch.flows[number], setting.plain(row, one))
    assert sizes == {1, 2, 4, 6}


def counted(run: Callable[[], None], sizes: set[int], size: int) -> None:
    sizes.add(size)
    run()


@pytest.mark.gpu
def test_a_stage_has_a_graph_for_each_form_and_partition(solver: str) -> None:
    setting = Setting("pi05", "cuda", solver=solver)
    setting.stages.partitions["fast"] = torch.cuda.Stream(priority=-1)
    wanted, made = setting.act([0], None).actions, []
    for stream in setting.stages.partitions.values():
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            made.append(setting.stages.act(setting.noise[:1], None, [0], [LENGTHS[0]], STEPS).actions)
            batch = Seated(CapturedSeats(setting.stages, 2, STEPS, wide=False))
            setting.begin(batch, 0, None)
            batch.run()
            made.append(batch.flows[0].actions)
    torch.cuda.synchronize()
    assert torch.equal(made[0], wanted) and torch.equal(made[2], wanted) and torch.equal(made[1], made[3])
    assert len(setting.stages.denoise(1, STEPS)._graphs) == 2


def test_chunks_by_themselves_come_to_the_host_as_they_are_on_the_device(
    kind: str, device: str, solver: str
) -> None:
    setting = Setting(kind, device, solver=solver)
    for which in ("few rows", "many rows", "stages"):
        for one in setting.several():
            noise, state = setting.noise[:1].cpu(), setting.state[:1].cpu()
            if which == "stages":
                given = noise, state, [0], [LENGTHS[0]], STEPS, [setting.of(one)]
                flow, pending = setting.stages.act(*given), setting.stages.submit(*given)
            else:
                seats = setting.seats(which)
                batch = Seated(seats)
                batch.begin(0, noise, state, setting.span(0), setting.of(one))
                batch.run()
                flow, pending = batch.flows[0], seats.results([0])[0]
            samples = pending.wait()
            assert pending.ready() and pending.wait() is samples
            assert torch.equal(torch.from_numpy(samples.actions), flow.actions.cpu())
            last = torch.from_numpy(samples.magnitudes)[-1]
            torch.testing.assert_close(last, flow.update.square().mean(-1).sqrt().cpu(), rtol=1e-5, atol=1e-6)


def test_magnitudes_are_how_far_every_step_moved_the_joints(kind: str, device: str, solver: str) -> None:
    setting = Setting(kind, device, solver=solver)
    stages, joints = Stages(setting.model, setting.pool, joints=6, solver=solver), 6
    for row, one in enumerate(setting.several()):
        noise, state = setting.noise[row : row + 1], setting.state[row : row + 1]
        given = noise, state, [row], [LENGTHS[row]], STEPS, [setting.of(one)]
        magnitudes = stages.submit(*given).wait().magnitudes
        assert magnitudes.shape == (STEPS, 1, setting.config.horizon)
        seats: list[Seats] = [
            CapturedSeats(stages, 1, STEPS, wide=False),
            PlainSeats(setting.model, 1, STEPS, together=False, joints=joints, solver=solver),
        ]
        for each in seats:
            batch = Seated(each)
            setting.begin(batch, row, one)
            moved = []
            for _ in range(STEPS):
                batch.step()
                moved.append(flow_of(each, 0).update[..., :joints].square().mean(-1).sqrt().cpu())
            found = torch.from_numpy(each.results([0])[0].wait().magnitudes)
            torch.testing.assert_close(found, torch.stack(moved), rtol=1e-5, atol=1e-6)
            assert_near(found, torch.from_numpy(magnitudes))


def test_chunks_of_a_batch_count_as_many_joints_as_each_has(kind: str, device: str, solver: str) -> None:
    setting = Setting(kind, device, solver=solver)
    given = setting.noise, setting.state, [0, 1, 2], [*LENGTHS], STEPS

    def magnitudes(joints: list[int] | None) -> Tensor:
        return torch.from_numpy(setting.stages.submit(*given, joints=joints).wait().magnitudes)

    mixed, whole = magnitudes([3, 8, 1]), magnitudes(None)
    flow = setting.stages.act(*given, joints=[3, 8, 1])
    for row, count in enumerate((3, 8, 1)):
        last = flow.update[row, :, :count].square().mean(-1).sqrt().cpu()
        torch.testing.assert_close(mixed[-1, row], last, rtol=1e-5, atol=1e-6)
        assert torch.equal(mixed[:, row], magnitudes([count] * 3)[:, row])
        assert torch.equal(mixed[:, row], whole[:, row]) == (count == 8)


def test_what_does_not_fit_is_refused() -> None:
    setting = Setting("pi05")
    with pytest.raises(ValueError, match="jacobian is 'exact'"):
        setting.of(Guidance(setting.previous, 1, 2, jacobian="exact"))
    other = Inpainting(torch.zeros(3, 8), torch.zeros(3))
    arguments = setting.noise[:1], setting.state[:1], [0], [LENGTHS[0]], STEPS, [other]
    with pytest.raises(ValueError, match=r"inpainting\.target has shape \[3, 8\]"):
        setting.stages.act(*arguments)
    batch = Seated(setting.seats("few rows"))
    with pytest.raises(ValueError, match=r"inpainting\.target has shape"):
        batch.begin(0, setting.noise[:1], None, setting.span(0), other)
    with pytest.raises(ValueError, match=r"inpainting\.committed is 8"):
        Inpainting(torch.zeros(8, 8), torch.zeros(8), committed=8)
    with pytest.raises(ValueError, match=r"give \[H, A\] and \[H\]"):
        Inpainting(torch.zeros(8, 8), torch.zeros(7))
    with pytest.raises(ValueError, match="2 guides"):
        setting.stages.act(*arguments[:5], [None, None])
