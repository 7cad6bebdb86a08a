"""Lines of models, engine, control and fleet that are broken on purpose: some test must notice each.

    python test/mutations.py [NAME ...]

applies each mutation to a copy of the package, runs the tests named with it against the copy, and fails if
one goes unnoticed. The text that is replaced stands once in the package, and tests are named by their file,
so neither minds where files lie.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "vla_accel_ros"
LIMIT_S = 280.0


@dataclass(frozen=True)
class Mutation:
    """old, new: a line's text and what it is broken to; tests: file names; only: pytest's -k."""

    name: str
    old: str
    new: str
    tests: tuple[str, ...]
    only: str = ""

    def source(self, package: Path) -> Path:
        """The file that has `old`. Raises ValueError unless it stands once in the package."""
        places = [file for file in sorted(package.rglob("*.py")) if self.old in file.read_text()]
        if len(places) != 1 or places[0].read_text().count(self.old) != 1:
            raise ValueError(f"{self.name}: '{self.old}' stands in {[str(file) for file in places]}")
        return places[0]

    def paths(self) -> list[str]:
        """Of the tests. Raises ValueError for a file that is not there once."""
        paths = []
        for name in self.tests:
            found = list((ROOT / "test").rglob(name))
            if len(found) != 1:
                raise ValueError(f"{name} is there {len(found)} times: mend mutation {self.name}")
            paths.append(str(found[0]))
        return paths


MUTATIONS = (
    Mutation("rotary base", "ROPE_THETA = 10_000.0", "ROPE_THETA = 7.0", ("test_oracles.py",)),
    Mutation(
        "rotary base, seen in bfloat16",
        "ROPE_THETA = 10_000.0",
        "ROPE_THETA = 7.0",
        ("test_oracles.py",),
        "computed_in_bfloat16",
    ),
    Mutation(
        "norm epsilon",
        "        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + NORM_EPS)\n        if",
        "        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-4)\n        if",
        ("test_oracles.py",),
    ),
    Mutation(
        "attention mask",
        "scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)\n    weights",
        "scores = scores + 0.0\n    weights",
        ("test_oracles.py",),
    ),
    Mutation(
        "sign of the Euler step", "        x = x + update", "        x = x - update", ("test_sampling.py",)
    ),
    Mutation(
        "order of the multistep solver", "else Rate(0.5, 0.5)", "else Rate(0.5, 0.4)", ("test_sampling.py",)
    ),
    Mutation(
        "a step extrapolates what guides it",
        "            self._before[seat] = velocity\n",
        "            self._before[seat] = guided\n",
        ("test_guided_stages.py",),
        "staggered and plain",
    ),
    Mutation(
        "time of committed actions, captured",
        "times = time.expand(len(committed)).masked_fill(committed, 0.0)[None]",
        "times = time.expand(len(committed))[None]",
        ("test_plain_stages.py",),
        "committed",
    ),
    Mutation(
        "slot of a captured prefix",
        "self._pool.view(slot, value.k.shape[3])",
        "self._pool.view(0, value.k.shape[3])",
        ("test_plain_stages.py",),
        "any_slot",
    ),
    Mutation(
        "a slot is given away before its layer was computed",
        "            yield matrices\n            self._release(number, last)",
        "            self._release(number, last)\n            yield matrices",
        ("test_offload.py",),
        "own_weights or same_bits",
    ),
    Mutation(
        "a streamed layer is copied late",
        "        following = number + self.slots\n",
        "        following = number + 1\n",
        ("test_offload.py",),
        "as_early",
    ),
    Mutation(
        "sign of guidance",
        "return v - strength * (target - (x - t * v)) * weights",
        "return v + strength * (target - (x - t * v)) * weights",
        ("test_rtc.py",),
    ),
    Mutation(
        "strength of guidance",
        "float((clean / tau) * ((clean * clean + tau * tau) / (clean * clean)))",
        "float((clean / tau) * ((clean * clean + tau * tau) / (tau * tau)))",
        ("test_rtc.py",),
    ),
    Mutation(
        "length of the keys a decode reads",
        "length = prefix.n_tokens + len(request.tokens) - 1",
        "length = prefix.n_tokens + len(request.tokens) - 2",
        ("test_packed_tokens.py",),
    ),
    Mutation(
        "keys that an answer reads",
        "self._prefixes.span(answer.slot, 0, answer.n_tokens)",
        "self._prefixes.span(answer.slot, 0, answer.n_tokens - 1)",
        ("test_answers.py",),
    ),
    Mutation(
        "limits",
        "    exceeds = report.over\n    if not exceeds.any():",
        "    exceeds = report.over\n    if exceeds is not None:",
        ("test_trajectory_limits.py",),
    ),
    Mutation(
        "brake",
        "velocities = np.where(t < stop_s, v0 - slowing * t, 0.0)",
        "velocities = np.where(t < stop_s, v0, v0)",
        ("test_trajectory.py", "test_trajectory_limits.py"),
    ),
    Mutation(
        "statistics of a robot's actions",
        "actions = denoising.policy.actions(",
        "actions = self._policy.actions(",
        ("test_robots.py",),
        "is_that_of_an_engine_of_the_robots_own",
    ),
    Mutation(
        "a robot's frame that cannot become an action",
        "                with failing_alone(request):\n                    request.finish(self._chunk(",
        "                if True:\n                    request.finish(self._chunk(",
        ("test_robots_come_and_go.py",),
        "bad_observation",
    ),
    Mutation(
        "motion: a stop is sent",
        "        self._outputs.send(path, now_ns)\n        if self._clock.was_set():",
        "        if self._clock.was_set():",
        ("test_adversary.py",),
        "nothing_that_happens",
    ),
    Mutation(
        "motion: chunks of an active node",
        "        if self.robot.active:\n            self.source",
        "        if True:\n            self.source",
        ("test_motion.py",),
    ),
    Mutation("motion: reports", "if report != self._last:", "if True:", ("test_motion.py",)),
    Mutation(
        "motion: released",
        "lent = self._robot.holds.lent and safety",
        "lent = False and safety",
        ("test_motion.py",),
    ),
    Mutation(
        "motion: sensors that cannot be judged",
        "if self.reflexes.failed:",
        "if False:",
        ("test_motion.py",),
    ),
    Mutation(
        "motion: lines that come again",
        "if now_ns >= self._logged_ns.get(kind, -AGAIN_NS) + AGAIN_NS:",
        "if True:",
        ("test_motion.py",),
    ),
    Mutation(
        "motion: after a crash",
        "elif not previous.clean and not go_on:",
        "elif previous.clean:",
        ("test_motion.py",),
    ),
    Mutation(
        "motion: a clock that is set while it is deactivated",
        "        yield 0.0  # the clock may have been set before the stop left\n",
        "",
        ("test_motion.py",),
        "while_it_is_deactivated",
    ),
    Mutation(
        "output: a stop that is held up",
        "overdue = now_ns > decided_ns + round(lead_s * 1e9)",
        "overdue = False",
        ("test_trajectory_output.py",),
        "when_it_leaves",
    ),
    Mutation(
        "on arrival: the range",
        "inside = (lowest >= limits.lower) & (highest <= limits.upper)",
        "inside = lowest == lowest",
        ("test_on_arrival.py",),
        "out_of_its_range",
    ),
    Mutation(
        "hand-over: a join before a controller rests",
        "leading = leading.until(now_ns + 2 * lead_ns)",
        "pass",
        ("test_hand_over.py",),
        "shortly_before",
    ),
    Mutation(
        "home: a call that was cancelled",
        "if call != self._calls:",
        "if False:",
        ("test_homing.py",),
        "held_never_moves",
    ),
    Mutation(
        "home: no more than a chunk's age",
        "return max(self._age_ns, 3 * self._robot.kept_ns)",
        "return 20 * self._age_ns",
        ("test_homing.py",),
        "age_of_a_chunk",
    ),
    Mutation(
        "home: joints that do not follow",
        "elif lost := self._lost():",
        "elif lost := str():",
        ("test_homing.py",),
        "do_not_follow",
    ),
    Mutation(
        "home: a fault",
        "if HOMING in holds.holds and holds.faults:",
        "if False:",
        ("test_homing.py",),
        "a_fault_ends",
    ),
    Mutation(
        "rest: of joints that brake by themselves",
        "return now_ns >= self._settles_until_ns or joining.at_rest",
        "return True",
        ("test_homing.py",),
        "long_after_they_were_heard",
    ),
    Mutation(
        "rest: of streams",
        "if not rests or not (yield from until_at_rest(robot, streams=True)):",
        "if not rests:",
        ("test_homing.py",),
        "behind_its_path",
    ),
    Mutation(
        "output: an overdue trajectory",
        "if self._scaled or self._delivery.overdue(now_ns):",
        "if self._scaled:",
        ("test_trajectory_output.py",),
    ),
    Mutation(
        "output: a scaled speed",
        "if self._scaled or self._delivery.overdue(now_ns):",
        "if self._delivery.overdue(now_ns):",
        ("test_trajectory_output.py",),
    ),
    Mutation(
        "output: another clock",
        "return 0 if steady_now_ns is None else steady_now_ns - now_ns",
        "return 0",
        ("test_trajectory_output.py",),
        "another_clock",
    ),
    Mutation(
        "delivery: what holds by itself from the beginning",
        "return not self._unseen or began_ns <= self._unseen[0].stamp_ns",
        "return True",
        ("test_delivery.py",),
    ),
    Mutation(
        "output: an end that is held",
        "if path.end_ns >= until_ns or (",
        "if True or (",
        ("test_trajectory_output.py",),
    ),
    Mutation(
        "output: a message that left late",
        "if late_s > 0.0 and not self._clock.was_set():",
        "if False:",
        ("test_trajectory_output.py",),
    ),
    Mutation(
        "output: a report that is awaited",
        "return self._steady_s() < self._hear_until_s",
        "return False",
        ("test_trajectory_output.py",),
    ),
    Mutation(
        "outputs: a stream that is behind",
        "if passed_ns >= _BEHIND_S * 1e9 and not brakes:",
        "if False:",
        ("test_reported_states.py",),
    ),
    Mutation(
        "publishers: two that stay", "(0 if ours else 1):", "(0 if ours else 2):", ("test_publishers.py",)
    ),
    Mutation(
        "chunks: of the slot and the topic",
        "or number <= self._slot.last:",
        "or number < self._slot.last:",
        ("test_source.py",),
    ),
    Mutation(
        "reports: speed",
        "if abs(speed - 1.0) > _USUAL else []",
        "if False else []",
        ("test_reported_states.py",),
    ),
    Mutation(
        "hand-over: a trajectory that may be on its way",
        "        if t_ns < arrived_ns:",
        "        if False:",
        ("test_hand_over_anew.py",),
        "only_a_stop_is_sent",
    ),
    Mutation(
        "states: a stop comes to its end",
        "MotionState.STOPPING: (Event.RESTED, MotionState.HOLDING),",
        "MotionState.STOPPING: (Event.SETTLED, MotionState.HOLDING),",
        ("test_watchdog.py",),
    ),
    Mutation("age of an input", "or abs(age) > limit", "or abs(age) < limit", ("test_watchdog.py",)),
    Mutation("age of a stamp in the future", "or abs(age) > limit", "or age > limit", ("test_watchdog.py",)),
    Mutation(
        "blend",
        "old_positions + weight * (actions[:count] - old_positions)",
        "actions[:count] + weight * (old_positions - actions[:count])",
        ("test_buffer.py",),
    ),
    Mutation(
        "following error",
        "np.abs(commanded - measured) > self.rad",
        "commanded - measured > self.rad",
        ("test_joint_faults.py",),
    ),
    Mutation(
        "resized: where a pixel's centre is",
        "(np.arange(after) + 0.5) - 0.5)",
        "(np.arange(after) + 0.5))",
        ("test_patches.py",),
        "twin_is_what",
    ),
    Mutation(
        "normalised: range of quantiles",
        "return cls(low, high - low + EPS, gain=2.0, offset=-1.0)",
        "return cls(low, high - low + EPS, gain=2.0, offset=0.0)",
        ("test_processing.py",),
        "normalisation",
    ),
    Mutation("scale of an adapter", "else alpha / rank\n", "else alpha\n", ("test_adapters.py",), "merged"),
    Mutation(
        "share of likely tokens",
        "ranked[share.cumsum(axis=-1) - share >= self.top_p]",
        "ranked[share.cumsum(axis=-1) >= self.top_p]",
        ("test_decoding.py",),
        "sampling",
    ),
    Mutation(
        "flow time of committed actions",
        "times[:, : self.delay] = 0.0",
        "times[:, : self.delay] = t",
        ("test_committed.py",),
        "clean",
    ),
    Mutation(
        "noise of a request",
        "default_rng((seed, number, 0))",
        "default_rng((seed, 0, 0))",
        ("test_sampling.py",),
        "another_request",
    ),
    Mutation(
        "a promise of pages",
        "            self._promised += promised\n        return Tail",
        "        return Tail",
        ("test_pages.py",),
        "cannot_be or admitted",
    ),
    Mutation(
        "a slot that is held twice",
        "            self._counts[slot] += 1\n",
        "            self._counts[slot] += 0\n",
        ("test_kv_pool.py",),
    ),
    Mutation(
        "an older frame is published",
        "previous is None or previous.version < prefix.version",
        "True",
        ("test_prefixes.py",),
    ),
    Mutation(
        "a chunk joins a batch late",
        "(not begun or self._steps < SOON)",
        "(not begun)",
        ("test_batches.py",),
        "soon",
    ),
    Mutation(
        "equation 5 of Nova",
        "most - alpha * (max(pending, 1) - 1)",
        "most - alpha * max(pending, 1)",
        ("test_partition.py",),
        "equation_5",
    ),
    Mutation(
        "overload: what is late",
        "late = ended_s - began_s > request.pace.most_s",
        "late = ended_s - began_s < request.pace.most_s",
        ("test_overload.py",),
        "evidence",
    ),
    Mutation("a slow stream", "_SLOW = 0.8", "_SLOW = 0.4", ("test_joints.py",)),
    Mutation(
        "frames that were lost",
        "max(round(periods) - 1, 0)",
        "max(round(periods) - 2, 0)",
        ("test_joints.py",),
    ),
    Mutation(
        "age of a set of frames",
        "oldest_ns = min(self._stamps.values())",
        "oldest_ns = max(self._stamps.values())",
        ("test_frame_sets.py",),
    ),
    Mutation("how long a set is fresh", "FRESH = 0.25", "FRESH = 0.75", ("test_frame_sets.py",)),
    Mutation("a damaged value of a slot", " or not is_whole", "", ("test_slot.py",)),
    Mutation(
        "stamps that fell back",
        "before_ns - stamp_ns > _JUMP_NS",
        "before_ns - stamp_ns > 100 * _JUMP_NS",
        ("test_joints.py",),
    ),
    Mutation(
        "order of colours",
        '"bgr8": _Layout(cv2.COLOR_BGR2RGB, 3)',
        '"bgr8": _Layout(None, 3)',
        ("test_image.py",),
    ),
    Mutation(
        "a picture without colour",
        "<= _GREY).mean()) >= _GREY_SHARE",
        "<= _GREY).mean()) > 1.0",
        ("test_robot_inputs.py",),
    ),
    Mutation(
        "rotation of a camera",
        "np.rot90(picture, -self.rotation // 90)",
        "np.rot90(picture, self.rotation // 90)",
        ("test_contract_parts.py",),
    ),
    Mutation(
        "sign of a joint",
        "return self.sign * UNITS[self.unit] if",
        "return UNITS[self.unit] if",
        ("test_contract.py", "test_contract_parts.py"),
    ),
    Mutation(
        "a joint that stops too late",
        "velocity > _LONGEST_STOP_S * acceleration",
        "velocity > 100 * _LONGEST_STOP_S * acceleration",
        ("test_contract.py",),
    ),
    Mutation(
        "joints of a controller",
        "if partial else set(ours) == set(joints)",
        "if partial else set(ours) <= set(joints)",
        ("test_controller_check.py",),
    ),
    Mutation(
        "reliability that does not match",
        'offered.reliability == "best_effort" and requested',
        'offered.reliability == "reliable" and requested',
        ("test_graph_check.py",),
    ),
    Mutation(
        "a bias that hides contacts",
        "if bias >= yields:",
        "if bias > 10 * yields:",
        ("test_force_section.py",),
    ),
    Mutation(
        "a model of other sizes",
        "trained.stop > 1 and count not in trained",
        "trained.stop > 1 and not trained",
        ("test_model_check.py",),
    ),
    Mutation(
        "a continuous joint of a URDF",
        '    if kind == "continuous":\n        lower = upper = None\n',
        '    if kind == "continuous":\n        lower = upper = 0.0\n',
        ("test_contract_examples.py",),
    ),
    Mutation(
        "fleet: dominant phase",
        "generation.length_s >= execution",
        "generation.length_s < execution",
        ("test_orders.py",),
    ),
    Mutation("fleet: wait ratio", "else waited_s / life_s if", "else waited_s if", ("test_orders.py",)),
    Mutation(
        "fleet: ageing of a bucket", "bucket -= int(age_s / ageing_s)", "bucket -= 0", ("test_orders.py",)
    ),
    Mutation(
        "fleet: longest execution",
        "bucket * LONGEST_S - (scaled_s",
        "bucket * LONGEST_S + (scaled_s",
        ("test_orders.py",),
    ),
    Mutation(
        "fleet: order of submission",
        "return range(len(ready))",
        "return range(len(ready), 0, -1)",
        ("test_fleet_rules.py",),
    ),
    Mutation(
        "fleet: least service",
        "[request.task.generated_s for",
        "[-request.task.generated_s for",
        ("test_fleet_rules.py",),
    ),
    Mutation(
        "fleet: oldest task",
        "[request.task.began_s for",
        "[-request.task.began_s for",
        ("test_fleet_rules.py",),
    ),
    Mutation(
        "fleet: age",
        "rounds_left / sqrt(1.0 + now_s - task.began_s)",
        "rounds_left / (1.0 + now_s - task.began_s)",
        ("test_orders.py",),
    ),
    Mutation(
        "fleet: an arm that moves",
        "(0.5 if task.rounds else 1.0) * rounds_left",
        "rounds_left",
        ("test_orders.py",),
    ),
    Mutation(
        "fleet: what moves on can wait",
        "key if task.runs_out_s <= calm_s else CALM + key",
        "key",
        ("test_orders.py",),
    ),
    Mutation(
        "fleet: mean of what is left",
        "remaining.append(total / more)",
        "remaining.append(total)",
        ("test_orders.py",),
    ),
    Mutation("fleet: those that go on", "self._most(kind, done) - done)", "0.0)", ("test_orders.py",)),
    Mutation("fleet: emergencies alone", "max(priorities) >= EMERGENCY", "False", ("test_fleet_rules.py",)),
    Mutation(
        "fleet: priorities",
        "overdue or max(priorities) > min(priorities)",
        "overdue",
        ("test_fleet_rules.py",),
    ),
    Mutation(
        "fleet: bound on waiting",
        "for request in waiting]) < before_s",
        "for request in waiting]) < -math.inf",
        ("test_fleet_rules.py",),
    ),
    Mutation("fleet: placement", "sooner += other.limit * batches", "sooner += 0", ("test_fleet_rules.py",)),
    Mutation(
        "fleet: a late replica", "now_s + max(now_s - expected_s, 1e-3)", "now_s", ("test_fleet_rules.py",)
    ),
    Mutation(
        "fleet: stale observations",
        "now_s - robot.observed_s > settings",
        "now_s - robot.observed_s < settings",
        ("test_simulation.py",),
    ),
    Mutation(
        "fleet: discarded overlap",
        "begin = max(self._until, self.next_action(now_s))",
        "begin = self.next_action(now_s)",
        ("test_simulation.py",),
    ),
    Mutation(
        "fleet: stall",
        "self.stalled_s += now_s - self.stops_s",
        "self.stalled_s += 0.0",
        ("test_simulation.py",),
    ),
    Mutation(
        "fleet: service",
        "done_s = begins_s + replica.network_s + computes_s",
        "done_s = begins_s + computes_s * 1.05",
        ("test_simulation.py",),
    ),
    Mutation(
        "fleet: ratios that stay",
        "chance.random() >= STAYS",
        "chance.random() >= 0.1",
        ("test_workloads.py",),
    ),
)


def notices(mutation: Mutation) -> bool:
    """Whether a test fails because of it. Raises RuntimeError if the tests did not run."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        copy = Path(folder) / PACKAGE
        shutil.copytree(ROOT / PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        file = mutation.source(copy)
        file.write_text(file.read_text().replace(mutation.old, mutation.new))
        # Python looks into the folder it is started in first.
        paths = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header"]
        command += ["--hypothesis-profile=unshrunk"]
        command += ["-k", mutation.only] if mutation.only else []
        done = subprocess.run(
            [*command, *mutation.paths()],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "TESTS": ""},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
    if done.returncode not in (0, 1):
        raise RuntimeError(
            f"{mutation.name}: pytest ended with {done.returncode}\n{done.stdout}{done.stderr}"
        )
    return done.returncode == 1


def main(names: list[str]) -> int:
    """Try the named ones, or all."""
    mutations = [mutation for mutation in MUTATIONS if not names or mutation.name in names]
    missed = []
    for mutation in mutations:
        noticed = notices(mutation)
        print(
            f"{'noticed' if noticed else 'MISSED '}  {mutation.name} ({', '.join(mutation.tests)})",
            flush=True,
        )
        missed += [] if noticed else [mutation.name]
    print(f"{len(mutations) - len(missed)} of {len(mutations)} noticed")
    return int(bool(missed) or not mutations)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
