"""The result of a check: how bad, about what, the fact, and its mend.

Checks of a robot return findings and raise nothing, so that one run names all problems. The caller decides
whether an error refuses a configuration, is logged, or is a line of `vla doctor`.
"""

from __future__ import annotations

from dataclasses import dataclass

OK, WARNING, ERROR = "ok", "warning", "error"


@dataclass(frozen=True)
class Finding:
    """level: OK, WARNING or ERROR. about: the part of the contract or system. what: the fact, without a full
    stop. mend: what to do, empty when all is well."""

    level: str
    about: str
    what: str
    mend: str = ""

    def __str__(self) -> str:
        sentence = f"{self.about}: {self.what}" if self.about else self.what
        return f"{sentence}; {self.mend}" if self.mend else sentence


def ok(about: str, what: str) -> Finding:
    """A finding without a problem."""
    return Finding(OK, about, what)


def warning(about: str, what: str, mend: str) -> Finding:
    """A finding about something that works, but perhaps not as wanted."""
    return Finding(WARNING, about, what, mend)


def error(about: str, what: str, mend: str) -> Finding:
    """A finding about something that cannot work."""
    return Finding(ERROR, about, what, mend)


def refuse(found: list[Finding]) -> None:
    """Raises ValueError with all errors among them in one sentence, if there is any."""
    errors = [str(finding) for finding in found if finding.level == ERROR]
    if errors:
        raise ValueError(" | ".join(errors))
