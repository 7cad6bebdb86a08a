"""Fuzz by command: python test/fuzz [--cases N] [--seed S] [--target NAME] [--case NUMBER]

Prints what became of the cases, and ends with a traceback when one of them is what must not be. `make fuzz`
runs a million.
"""

from __future__ import annotations

import argparse
import time

from campaign import run
from fuzz_targets import SHARES, TARGETS


def main() -> None:
    """Run all targets, or one, or one case of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=1_000_000, help="in all (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of all cases (default: %(default)s)")
    parser.add_argument("--target", choices=tuple(TARGETS), help="only this one, with its part of the cases")
    parser.add_argument("--case", type=int, help="only this one, with --target")
    wanted = parser.parse_args()
    if wanted.case is not None and wanted.target is None:
        parser.error("--case needs --target")
    for name in [wanted.target] if wanted.target else TARGETS:
        cases = range(round(wanted.cases * SHARES[name]))
        if wanted.case is not None:
            cases = range(wanted.case, wanted.case + 1)
        begun_s = time.monotonic()
        outcomes = run(name, TARGETS[name], cases, wanted.seed)
        counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
        print(f"{name}: {len(cases)} cases in {time.monotonic() - begun_s:.0f} s: {counts}", flush=True)


if __name__ == "__main__":
    main()
