"""What a judge said of calls of the past, against what people decided about them. Pure; memory is bounded."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from turngate.domain.policy.judge import Judgement
from turngate.domain.requests import RequestStatus, Verb

Decided = Literal["approved", "edited", "rejected", "nobody"]
"""What a person decided; ``nobody``: it expired, waits, or ran because the judge allowed it."""
Pair = tuple[Literal["allow", "ask"], Decided]

DIFFERENCES: Final[tuple[Pair, ...]] = (("allow", "rejected"), ("allow", "edited"), ("ask", "approved"))
"""Where judge and person differ, the dangerous one first: it would have run what someone refused."""


def decided(status: RequestStatus | None, verb: Verb | None) -> Decided:
    """Return what a person decided. ``status`` None: no one was asked."""
    if status == "approved":
        return "edited" if verb == "edit" else "approved"
    return "rejected" if status == "rejected" else "nobody"


@dataclass(kw_only=True)
class JudgeReport:
    """What was seen so far. ``pairs``: (verdict, decision) → calls. ``problems``: why there was no answer → calls.

    ``examples``: the ids of some calls of each difference, as they were added: newest first.
    """

    model: str | None = None
    examples_kept: int = 20
    pairs: Counter[Pair] = field(default_factory=Counter)
    problems: Counter[str] = field(default_factory=Counter)
    examples: dict[Pair, list[tuple[str, str]]] = field(default_factory=dict)

    def add(self, judgement: Judgement, by_people: Decided, *, run_id: str, named: str) -> None:
        """Count one call. ``named``: its request's id, or the call's where no one was asked."""
        pair: Pair = (judgement.verdict, by_people)
        self.pairs[pair] += 1
        if judgement.problem is not None:
            self.problems[judgement.problem] += 1
        examples = self.examples.setdefault(pair, [])
        if pair in DIFFERENCES and len(examples) < self.examples_kept:
            examples.append((run_id, named))

    @property
    def judged(self) -> int:
        """How many calls it was asked about."""
        return self.pairs.total()

    def count(self, verdict: Literal["allow", "ask"], *, decided_only: bool = False) -> int:
        """Return how often it said so; ``decided_only``: of calls that a person decided."""
        return sum(
            number
            for (judged, by_people), number in self.pairs.items()
            if judged == verdict and not (decided_only and by_people == "nobody")
        )

    def rate(self, pair: Pair) -> float | None:
        """Return the share of calls with this verdict that people decided so; None: they decided none of them."""
        of = self.count(pair[0], decided_only=True)
        return self.pairs[pair] / of if of else None

    def as_json(self) -> dict[str, Any]:
        """Return the report for programs; the dangerous difference comes first."""
        return {
            "model": self.model,
            "judged": self.judged,
            "allow": self.count("allow"),
            "ask": self.count("ask"),
            "differences": [
                {
                    "judge": pair[0],
                    "person": pair[1],
                    "calls": self.pairs[pair],
                    "of": self.count(pair[0], decided_only=True),
                    "rate": self.rate(pair),
                    "examples": [{"run_id": run_id, "id": named} for run_id, named in self.examples.get(pair, [])],
                }
                for pair in DIFFERENCES
            ],
            "pairs": [
                {"judge": judged, "person": by, "calls": number} for (judged, by), number in self.pairs.most_common()
            ],
            "no_answer": dict(self.problems),
        }
