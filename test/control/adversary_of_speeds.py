"""A random adversary of tasks that have speeds: `python test/control/adversary_of_speeds.py --events N`.

It plays what adversary.py does with chunks that are driven slower than the policy timed them, or as fast as
the limits allow, and with instructions that change the speed on the way.
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace

from adversary import main
from adversary_faults import Episode
from adversary_scene import KINDS, Case, S
from world import Parameters

SPEEDS = ("fast", "0.3", "fast; slow*=0.1", "1; slow*=0.5; fast*=fast")
TASKS = ("slowly up", "fast down", "as usual", "")
TASKS_HZ = 2


class EpisodeOfSpeeds(Episode):
    """With what is above. A hand's twists have no other speed."""

    def __init__(self, case: Case) -> None:
        self._tasks = random.Random(f"speeds {case.seed}")
        kinds = [name for name in KINDS if name != "servo_twist"]
        super().__init__(replace(case, kind=case.kind or self._tasks.choice(kinds)))
        self._every(S // TASKS_HZ, lambda: self.node.motion.runs.hear(self._tasks.choice(TASKS)))

    def _parameters(self) -> Parameters:
        parameters = super()._parameters()
        mode = "blend" if parameters.options.mode == "rtc" else parameters.options.mode
        options = replace(parameters.options, mode=mode, speed=self._tasks.choice(SPEEDS))
        return replace(parameters, options=options)


if __name__ == "__main__":
    sys.exit(main(EpisodeOfSpeeds, __doc__))
