"""The next subtask of a task, on a period: from the model's own answers, or from texts that others publish.

A person gives the task. While autosteer is on, what the policy is told is the newest subtask; before the
first one, and while autosteer is off, it is the task itself. A source that falls silent for three periods is
an input that is late: the policy is told nothing, so the arm stops, with that as its reason. Without ROS,
threads or a clock.
"""

from __future__ import annotations

from dataclasses import dataclass

MODEL, TOPIC = "model", "topic"
_PATIENCE = 3.0


@dataclass(frozen=True)
class Words:
    """What the policy is told. missing: a sentence if that is nothing."""

    text: str
    missing: str = ""


class Subtasks:
    """The subtasks of one robot. source: `model`, `topic`, or `none`. question: what the model is asked, with
    {task} for the task.

    Attributes: `autosteer`; `task`, empty before the first; `subtask`, the newest of this task, empty before
    the first.
    """

    def __init__(self, source: str, period_s: float, question: str = "{task}") -> None:
        self.source, self._period_s, self._template = source, period_s, question
        self.autosteer, self.task, self.subtask = source != "none", "", ""
        self._asked_s = self._answered_s = 0.0
        self._waits = False

    @property
    def steers(self) -> bool:
        """Whether subtasks are followed now."""
        return self.autosteer and bool(self.task.strip())

    @property
    def question(self) -> str:
        """What the model is asked."""
        return self._template.replace("{task}", self.task)

    def instruct(self, task: str, now_s: float) -> None:
        """A person gives a task."""
        self.task, self.subtask = task, ""
        self.begin(now_s)

    def steer(self, on: bool, now_s: float) -> None:
        """Follow subtasks from now on, or the task itself."""
        self.autosteer, self.subtask = on, ""
        self.begin(now_s)

    def begin(self, now_s: float) -> None:
        """Wait for the first subtask from now on."""
        self._asked_s, self._answered_s, self._waits = now_s - self._period_s, now_s, False

    def due(self, now_s: float) -> bool:
        """Whether to ask the model now: every period, and not before it has answered, or never will."""
        waited_s = now_s - self._asked_s
        if self.source != MODEL or not self.steers or waited_s < self._period_s:
            return False
        if self._waits and waited_s < _PATIENCE * self._period_s:
            return False
        self._asked_s, self._waits = now_s, True
        return True

    def answer(self, text: str, now_s: float) -> bool:
        """Take a subtask; returns whether it is another one."""
        self._waits, text = False, " ".join(text.split())
        if not self.steers or not text:
            return False
        self._answered_s, changed, self.subtask = now_s, text != self.subtask, text
        return changed

    def words(self, now_s: float) -> Words:
        """What the policy is told now."""
        if not self.steers:
            return Words(self.task)
        silent_s = _PATIENCE * self._period_s
        if now_s - self._answered_s > silent_s:
            source = "the model answers none" if self.source == MODEL else "is its source running?"
            return Words(
                "", f"no subtask for {silent_s:g} s: {source}; ~/autosteer with false acts on the task itself"
            )
        return Words(self.subtask or self.task)
