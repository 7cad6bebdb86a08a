"""The result of a check: how bad, about what, the fact, and its fix.

Checks of a robot return findings and raise nothing, so that one run names all problems. The caller decides
whether an error refuses a configuration, is logged, or is a line of `vla doctor`.
"""

from __future__ import annotations

from dataclasses import dataclass

OK, WARNING, ERROR = "ok", "warning", "error"


@dataclass(frozen=True)
class Finding:
    """level: OK, WARNING or ERROR. about: the part of the contract or system. fact: without a full stop. fix:
    what to do, empty when all is well."""

    level: str
    about: str
    fact: str
    fix: str = ""

    def __str__(self) -> str:
        subject = f"{self.about}: " if self.about else ""
        return f"{subject}{self.fact}; {self.fix}" if self.fix else f"{subject}{self.fact}"


def ok(about: str, fact: str) -> Finding:
    """A finding without a problem."""
    return Finding(OK, about, fact)


def warning(about: str, fact: str, fix: str) -> Finding:
    """A finding about something that works, but perhaps not as wanted."""
    return Finding(WARNING, about, fact, fix)


def error(about: str, fact: str, fix: str) -> Finding:
    """A finding about something that cannot work."""
    return Finding(ERROR, about, fact, fix)


def refuse(findings: list[Finding]) -> None:
    """Raises ValueError with all errors among them in one sentence, if there is any."""
    errors = [str(finding) for finding in findings if finding.level == ERROR]
    if errors:
        raise ValueError(" | ".join(errors))
