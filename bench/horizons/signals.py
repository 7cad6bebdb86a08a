"""Which signal predicts, action by action, how wrong a chunk is.

Episodes of the bundled policy, a chunk in every third frame, executed by `blend`. For every fourth chunk more
samples are drawn from the same prefix, which the robot does not use. Two errors of an action, RMS over the
joints in the contract's units: its distance from what a chunk says that was observed within three frames
before it is due (`later`), and from the mean of other samples (`mean`). A signal is informative if its rank
correlation (Spearman) with an error is above 0: over all actions, and over actions at the same place in their
chunks, where the place itself predicts nothing. Intervals: 95 %, bootstrap over episodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from handovers.episodes import CONDITIONS, open_policy
from vla_accel_ros.control.horizon import Made
from vla_accel_ros.control.horizon_rules import Signal, disagreement, last_update, spread, update_ratio
from vla_accel_ros.engine.kv.pool import Prefix
from vla_accel_ros.models.flow.noise import fresh
from vla_accel_ros.sim.tasks import tasks
from vla_accel_ros.tools.demo_policy.rollout import Session, Timing
from vla_accel_ros.types import Chunk

TIMING = Timing(period=3, latency=4)
LOOKED_AT = 4
SAMPLES = 12
OF_SPREAD = 2
SIGNALS: Mapping[str, Signal] = {
    "update_ratio": update_ratio,
    "last_update": last_update,
    "spread": spread,
    "agreement": disagreement,
}
PLACE = "place in the chunk"
ERRORS = ("later", "mean")
RESAMPLES = 200


@dataclass(frozen=True)
class Seen:
    """A chunk, the one before, and further samples of its prefix, float [K, H, D]; most chunks have none."""

    chunk: Chunk
    previous: Chunk | None
    samples: np.ndarray


@dataclass(frozen=True)
class Table:
    """Of actions, float [n] each, nan where there is none: their signals and errors, with the place in the
    chunk and the episode."""

    columns: Mapping[str, np.ndarray]
    place: np.ndarray
    episode: np.ndarray


def collect(policy: Path, contract: Path, families: Mapping[str, int]) -> Table:
    """families: episodes of each, in each condition of standing and moved targets."""
    engine, robot, known = open_policy(policy, contract)
    shape = (engine.policy.config.horizon, engine.policy.config.action_dim)
    seen: list[Seen] = []
    rows: list[tuple[int, list[Seen]]] = []

    def watch(prefix: Prefix, chunk: Chunk) -> None:
        noises = [fresh(9, len(seen) * SAMPLES + i, shape) for i in range(SAMPLES)]
        wanted = noises if len(seen) % LOOKED_AT == 0 else []
        further = [engine.act(prefix, noise=noise).actions for noise in wanted]
        seen.append(Seen(chunk, seen[-1].chunk if seen else None, np.array(further)))

    session = Session(engine, robot, known, TIMING, watch=watch)
    for family, episodes in families.items():
        choices = tasks(family)
        for condition in ("static", "moved"):
            for seed in range(episodes):
                seen.clear()
                event = CONDITIONS[condition]
                session.play(choices[seed % len(choices)], seed, ask_every=None, event=event)
                rows.append((len(rows), list(seen)))
    return tabled(rows)


def tabled(episodes: Iterable[tuple[int, Sequence[Seen]]]) -> Table:
    """The chunks of which there are samples, action by action."""
    parts: list[dict[str, np.ndarray]] = []
    for number, seen in episodes:
        later = [one.chunk for one in seen]
        parts += [
            {**_of(one, later), "episode": np.full(one.chunk.horizon, number)}
            for one in seen
            if len(one.samples)
        ]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return Table(columns, columns.pop("place"), columns.pop("episode"))


def _of(seen: Seen, later: Sequence[Chunk]) -> dict[str, np.ndarray]:
    chunk, total = seen.chunk, seen.chunk.horizon
    made = Made(chunk, seen.previous, list(seen.samples[:OF_SPREAD]))
    found = {name: _filled(signal(made), total) for name, signal in SIGNALS.items()}
    others = seen.samples[OF_SPREAD:].mean(axis=0)
    found["mean"] = _rms(chunk.actions - others)
    found["later"] = said_later(chunk, later)
    found["place"] = np.arange(total)
    return found


def said_later(chunk: Chunk, chunks: Iterable[Chunk], within: int = 3) -> np.ndarray:
    """Distance of each action [H] from what the newest chunk says that was observed after this one, at most
    `within` actions before it is due; nan if there is none."""
    step_ns, error = chunk.step_dt_s * 1e9, np.full(chunk.horizon, np.nan)
    for other in sorted(chunks, key=lambda one: one.stamp_ns):
        passed = round((other.stamp_ns - chunk.stamp_ns) / step_ns)
        if passed >= 1:
            of = slice(passed, min(passed + within, chunk.horizon))
            error[of] = _rms(chunk.actions[of] - other.actions[: len(error[of])])
    return error


def _rms(apart: np.ndarray) -> np.ndarray:
    return np.asarray(np.sqrt(np.square(apart.astype(np.float64)).mean(axis=-1)))


def _filled(values: np.ndarray | None, total: int) -> np.ndarray:
    found = np.full(total, np.nan)
    if values is not None:
        found[: len(values)] = values
    return found


def correlations(table: Table) -> list[dict[str, Any]]:
    """A row for each signal and error, with its intervals."""
    columns = {**table.columns, PLACE: table.place.astype(float)}
    return [
        {"signal": name, "error": error, **_correlated(columns[name], columns[error], table)}
        for error in ERRORS
        for name in (PLACE, *SIGNALS)
    ]


def _correlated(signal: np.ndarray, error: np.ndarray, table: Table) -> dict[str, Any]:
    kept = np.isfinite(signal) & np.isfinite(error)
    values = [column[kept] for column in (signal, error, table.place, table.episode)]
    of = [np.flatnonzero(values[3] == number) for number in np.unique(values[3])]
    rng, every = np.random.default_rng(0), np.arange(len(values[0]))
    drawn = [
        np.concatenate([of[i] for i in rng.integers(len(of), size=len(of))])
        for _ in range(RESAMPLES * bool(of))
    ]
    measures = {"overall": _overall, "at_place": _at_place}
    return {"n": len(every)} | {
        name: _figure(measure(values, every), [measure(values, at) for at in drawn])
        for name, measure in measures.items()
    }


def _figure(rho: float, drawn: Sequence[float]) -> dict[str, Any]:
    known = [value for value in drawn if not np.isnan(value)]
    if np.isnan(rho) or not known:
        return {"rho": None, "interval_95": None}
    interval = [round(float(bound), 4) for bound in np.quantile(known, (0.025, 0.975))]
    return {"rho": round(rho, 4), "interval_95": interval}


def _overall(values: Sequence[np.ndarray], at: np.ndarray) -> float:
    return spearman(values[0][at], values[1][at])


def _at_place(values: Sequence[np.ndarray], at: np.ndarray) -> float:
    """The mean over the places."""
    signal, error, place = (column[at] for column in values[:3])
    found = [spearman(signal[place == p], error[place == p]) for p in np.unique(place)]
    known = [rho for rho in found if not np.isnan(rho)]
    return float(np.mean(known)) if known else float("nan")


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Rank correlation of two columns [n]; nan where one is constant or n < 3."""
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    """With the mean rank of those that are equal."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(count) - (count - 1) / 2)[place])


def quantiles(table: Table) -> dict[str, list[float]]:
    """Of each signal, at 10, 25, 50, 75 and 90 %: between which limits choose."""
    at = (0.1, 0.25, 0.5, 0.75, 0.9)
    return {name: [round(float(v), 4) for v in np.nanquantile(table.columns[name], at)] for name in SIGNALS}


def lines(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    """The table in Markdown."""
    yield "| signal | error | rho over all actions | rho at the same place |"
    yield "|---|---|---|---|"
    for row in rows:
        yield f"| {row['signal']} | {row['error']} | {_shown(row['overall'])} | {_shown(row['at_place'])} |"


def _shown(figure: dict[str, Any]) -> str:
    if figure["rho"] is None:
        return "-"
    low, high = figure["interval_95"]
    return f"{figure['rho']:+.2f} ({low:+.2f} to {high:+.2f})"
