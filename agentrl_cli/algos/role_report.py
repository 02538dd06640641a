"""What is told of a language role: how its answers were read, one of them, and what to change."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl_cli.core.errors import UserError

SHOWN_CHARACTERS = 160  # of a sample
PROMPT_OF = {"refine": "refine or refine_by_rollouts"}  # the key of a role that has another name
FORMS = {
    "forecast": "end with the one word Success. or Failure.",
    "evaluate": "begin with Optimality: Yes. or Optimality: No.",
    "refine": "end before rollout.max_tokens",
}


@dataclass(frozen=True)
class RoleReport:
    """How a role's answers were read: how many, how many of them readable and cut at the limit of
    tokens, and one of them (an unreadable one where there is any) with its reading."""

    role: str
    count: int
    readable: int
    cut: int
    sample: str
    read_as: str

    @property
    def share(self) -> float:
        """The share that is readable."""
        return self.readable / self.count

    @property
    def line(self) -> str:
        """The report in a line."""
        text = " ".join(self.sample.split())
        shown = text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
        head = f"{self.readable} of {self.count} readable; {self.read_as}: {shown!r}"
        return f"{head}; {self.remedy}" if self.readable < self.count else head

    @property
    def remedy(self) -> str:
        """What to change where not all is readable."""
        limit = "rollout.max_tokens" if self.role == "refine" else "algo.advanced.role_tokens"
        if self.cut > (self.count - self.readable) / 2:
            return f"{self.cut} were cut: raise {limit}"
        form = FORMS.get(self.role, FORMS["forecast"])
        return f"word algo.prompts.{PROMPT_OF.get(self.role, self.role)} so that answers {form}"


def refuse_unreadable(reports: list[RoleReport], least: float) -> None:
    """Raise UserError, a line for each role of whose answers less than `least` can be read."""
    lines = [
        f"algo.min_readable: of the role '{report.role}' only {report.line}"
        for report in reports
        if report.share < least
    ]
    if lines:
        raise UserError("\n".join(lines))
