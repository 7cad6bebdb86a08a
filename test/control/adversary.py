"""A random adversary of all that turns chunks into motion: `python test/control/adversary.py --seed N`.

An episode is a robot of some controller kind, limits and parameters, and a few seconds in which everything
that can go wrong does: chunks that are late, early, doubled, reordered, wild, not finite or of another shape;
joints that glitch, fall silent, freeze or are stamped wrongly; clocks that are set; orders of an operator;
processes that stall or start anew. Time is simulated. What the controllers execute meanwhile is judged by
executed.py; a seed makes the same episode again.

An episode is made of layers: adversary_scene (robot and time), adversary_judge, adversary_inputs (what the
node gets), adversary_messages (what it sends, on the way) and adversary_faults (what goes wrong).
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from adversary_faults import FAULTS, Episode
from adversary_scene import KINDS, Case
from executed import Broken


@dataclass(frozen=True)
class Result:
    """Of one episode. moved: share of the time in which the joints were commanded to move. log: what
    happened, as "time fault"."""

    seed: int
    kind: str
    mode: str
    events: int
    moved: float
    broken: tuple[str, ...]
    log: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.kind} {self.mode}: {'; '.join(self.broken)}; again: --seed {self.seed}"


def play(case: Case, episode_of: type[Episode] = Episode) -> Result:
    """One episode; what it raises is broken too."""
    episode = episode_of(case)
    mode = episode.parameters.options.mode
    try:
        episode.run()
    except Exception as error:
        trace = "".join(traceback.format_exception(error))
        episode.broken.append(Broken(f"{trace}at", episode.t_ns * 1e-9, 2.0))
    broken = tuple(map(str, episode.broken))
    return Result(
        case.seed, episode.robot.kind, mode, episode.events, episode.moved, broken, tuple(episode.log)
    )


def results(
    events: int, first: Case, processes: int = 1, episode_of: type[Episode] = Episode
) -> Iterator[Result]:
    """Episodes from a seed on, until so many events have happened."""
    play_case = partial(play, episode_of=episode_of)
    cases = (replace(first, seed=seed) for seed in itertools.count(first.seed))
    if processes == 1:
        played: Iterator[Result] = map(play_case, cases)
        pool = None
    else:
        pool = multiprocessing.get_context("spawn").Pool(processes)
        # An endless source would be read to its end: what is more than enough is never played.
        played = pool.imap_unordered(play_case, itertools.islice(cases, events), chunksize=4)
    for result in played:
        events -= result.events
        yield result
        if events <= 0:
            break
    if pool is not None:
        pool.terminate()


def main(episode_of: type[Episode] = Episode, about: str | None = __doc__) -> int:
    """Play episodes until so many events have happened; status 1 when something was broken."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=100_000, help="in all (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="seed of the first episode")
    parser.add_argument("--seed", type=int, help="only this episode, with what happened in it")
    parser.add_argument("--faults", help=f"comma separated, of: {', '.join(FAULTS)}; all when not given")
    parser.add_argument("--kind", choices=KINDS, help="of the controller; random when not given")
    parser.add_argument("--chunk-hz", type=int, help="chunks a second; random when not given")
    parser.add_argument("--processes", type=int, default=1)
    wanted = parser.parse_args()
    faults = None if wanted.faults is None else tuple(filter(None, wanted.faults.split(",")))
    first = Case(wanted.first if wanted.seed is None else wanted.seed, faults, wanted.kind, wanted.chunk_hz)
    if wanted.seed is not None:
        result = play(first, episode_of)
        print("\n".join((*result.log, str(result))))
        return bool(result.broken)
    events, episodes, failed, began = 0, 0, 0, time.monotonic()
    for result in results(wanted.events, first, wanted.processes, episode_of):
        events, episodes = events + result.events, episodes + 1
        if result.broken:
            failed += 1
            print(result, flush=True)
        if episodes % 1000 == 0:
            print(f"{events} events, {time.monotonic() - began:.0f} s", flush=True)
    print(f"{events} events in {episodes} episodes: {failed} of them broke something")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
