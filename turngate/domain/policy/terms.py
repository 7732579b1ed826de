"""The terms on which a call is asked for: who may decide, how many, in which words, until when and what then.

Pure. Policy rules carry them, a verdict hands them on, and the workflow holds a request to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from turngate.domain.requests import ALLOWED_VERBS, RequestKind, Verb

Role = Literal["viewer", "operator", "admin"]
DecidingRole = Literal["operator", "admin"]
OnExpiry = Literal["reject", "park"]

MAX_QUORUM: Final = 10
MAX_RUNGS: Final = 10
MAX_GRACE_SECONDS: Final = 3600
HIGH_RISK_GRACE_SECONDS: Final = 5
"""The grace of a rule of high risk that sets none."""
YEAR_SECONDS: Final = 31_536_000
QUORUM_VERBS: Final[tuple[Verb, ...]] = ("approve", "reject")
"""What a request takes that several have to approve: what one edits or answers, the others would not have seen."""


class Rung(BaseModel):
    """One rung of the ladder, climbed when no one has decided ``after_seconds`` after the request was opened.

    ``remind`` notifies those who may decide again; ``escalate`` lets ``roles`` and ``people`` decide too; ``delegate`` lets
    only them decide from then on. None of them decides the request.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    after_seconds: int = Field(ge=1, le=YEAR_SECONDS)
    do: Literal["remind", "escalate", "delegate"]
    roles: list[DecidingRole] = []
    people: list[str] = []

    @model_validator(mode="after")
    def _names_people(self) -> Rung:
        if self.do != "remind" and not self.roles and not self.people:
            raise ValueError(f"a rung that does {self.do!r} says to whom: roles = [...] or people = [...]")
        if self.do == "remind" and (self.roles or self.people):
            raise ValueError('a rung that reminds tells those who may decide; for others use do = "escalate"')
        return self


OWNERS_PREFIX: Final = "cli:"
"""Of the token that a stack leaves its owner's own commands. No one else may have such a name, so it is a person's."""


def person_of(name: str) -> str:
    """Return who acts under this name: ``cli:ann`` is Ann's terminal. Wherever different people are needed, these are one."""
    return name.removeprefix(OWNERS_PREFIX)


def same_person(one: str, other: str) -> bool:
    """Tell whether two names are of one person."""
    return person_of(one) == person_of(other)


def names_of(person: str) -> tuple[str, str]:
    """Return the names under which a person acts."""
    return person_of(person), f"{OWNERS_PREFIX}{person_of(person)}"


def renamed(terms: AskTerms, ids: Mapping[str, str]) -> dict[str, object]:
    """Return the fields of terms that name people, by other names: name → what to write in its place."""
    ladder = [
        rung.model_copy(update={"people": [ids.get(each, each) for each in rung.people]}) for rung in terms.ladder
    ]
    return {"people": [ids.get(each, each) for each in terms.people], "ladder": ladder}


class AskTerms(BaseModel):
    """How a call that is asked for is to be decided.

    ``decisions``: the verbs it takes, None all that fit. ``quorum``: how many different people have to approve; one
    rejection ends it. ``roles``, ``people``: who may decide; with neither, any operator. An admin may do what an operator
    may. ``on_expiry``: ``reject`` closes the call, ``park`` waits on without a clock. ``grantable``: whether a grant may
    answer in place of a person although a rule asks. ``fresh_for_seconds``: how old an approval may be when its call
    starts; an older one counts only where the tool's precondition says that nothing has changed; None: any age.
    ``grace_seconds``: how long after its approval the call starts, and so long the approval can be taken back; None: a rule of
    high risk has a default, any other has none. ``judge``: whether the app's judge may let such a call run in place of a person
    although a rule asks; None: it may not.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    expires_after_seconds: int | None = Field(default=None, ge=1, le=YEAR_SECONDS)
    """How long it waits before it expires; None: the agent's limit."""
    on_expiry: OnExpiry = "reject"
    fresh_for_seconds: int | None = Field(default=None, ge=1, le=YEAR_SECONDS)
    grace_seconds: int | None = Field(default=None, ge=0, le=MAX_GRACE_SECONDS)
    starter_may_decide: bool = True
    decisions: list[Verb] | None = Field(default=None, min_length=1)
    quorum: int = Field(default=1, ge=1, le=MAX_QUORUM)
    roles: list[DecidingRole] = []
    people: list[str] = []
    ladder: list[Rung] = Field(default=[], max_length=MAX_RUNGS)
    grantable: bool = False
    judge: Literal["may_allow"] | None = None

    @model_validator(mode="after")
    def _can_be_met(self) -> AskTerms:
        """Refuse terms that no answer could meet, or that would not do what they seem to say."""
        if self.quorum > 1:
            self._check_quorum()
        self._check_ladder()
        if self.grace_seconds is not None and _is_shorter(self.fresh_for_seconds, self.grace_seconds + 1):
            raise ValueError(
                "an approval would be too old before its call may start: make fresh_for_seconds longer than grace_seconds"
            )
        return self

    def _check_quorum(self) -> None:
        extra = [verb for verb in self.decisions or () if verb not in QUORUM_VERBS]
        if extra:
            raise ValueError(f"with quorum = {self.quorum} the decisions are approve and reject, not {extra[0]}")
        if self.grantable:
            raise ValueError(
                f"with quorum = {self.quorum} leave grantable out: a grant is one person's yes to many calls"
            )
        for terms in self._stages():
            if terms.people and not terms.roles and len(set(terms.people)) < self.quorum:
                raise ValueError(f"quorum = {self.quorum} needs at least as many people as it asks for, on each rung")

    def _check_ladder(self) -> None:
        times = [rung.after_seconds for rung in self.ladder]
        if times != sorted(set(times)):
            raise ValueError("the rungs of a ladder come in order, each later than the one before")
        last = self.expires_after_seconds
        if times and last is not None and times[-1] >= last:
            raise ValueError(f"the rung at {times[-1]} s would come after the expiry at {last} s")

    def _stages(self) -> list[AskTerms]:
        """Return the terms as they are at first and from each rung on."""
        return list(accumulate(self.ladder, AskTerms.climbed, initial=self))

    def verbs(self, kind: RequestKind) -> tuple[Verb, ...]:
        """Return what a request of this kind takes. A rule limits approvals; a question can always be answered."""
        if kind != "approval":
            return ALLOWED_VERBS[kind]
        allowed = QUORUM_VERBS if self.quorum > 1 else ALLOWED_VERBS[kind]
        return tuple(verb for verb in allowed if self.decisions is None or verb in self.decisions)

    def barred(self, *, name: str, role: Role, machine: bool) -> str | None:
        """Return why this one may not decide, in words for them; None when they may. The starter is barred elsewhere."""
        if machine and self.quorum > 1:
            return f"{self.quorum} people must approve this, and this token belongs to no one: log in, or bind it to a user"
        roles = self.roles or ([] if self.people else ["operator"])
        if name in self.people or role in roles or (role == "admin" and "operator" in roles):
            return None
        wanted = [*(f"role {role}" for role in roles), *self.people]
        return f"its rule lets others decide: {', '.join(wanted)}"

    def stricter_than(self, earlier: AskTerms) -> str | None:
        """Return in what these terms are stricter than earlier ones, in words for people; None when they are in nothing.

        Everyone who could decide under the earlier terms must be able to under these, with the same words and as much time.
        """
        if self.quorum > earlier.quorum:
            return f"{self.quorum} people must approve it"
        if earlier.starter_may_decide and not self.starter_may_decide:
            return "the person who started the run may not decide it"
        if not earlier._deciders() <= self._deciders():
            return "other people decide it"
        if not set(earlier.verbs("approval")) <= set(self.verbs("approval")):
            return f"it takes only {', '.join(self.verbs('approval'))}"
        if _is_shorter(self.fresh_for_seconds, earlier.fresh_for_seconds):
            return f"an approval of it counts for {self.fresh_for_seconds} s"
        if _is_shorter(self.expires_after_seconds, earlier.expires_after_seconds):
            return f"it expires after {self.expires_after_seconds} s"
        if (self.grace_seconds or 0) > (earlier.grace_seconds or 0):
            return f"it starts {self.grace_seconds} s after its approval"
        return None

    def _deciders(self) -> set[tuple[str, str]]:
        """Return who may decide: roles, with those that may do what they may, and people."""
        roles = self.roles or ([] if self.people else ["operator"])
        widened = [*roles, "admin"] if "operator" in roles else roles
        return {("role", role) for role in widened} | {("person", name) for name in self.people}

    def rungs_before(self, expires_after_seconds: int | None) -> range:
        """Return the rungs, by index, that come before the expiry of a request. None: it does not expire.

        A rule that leaves the expiry to the agent's limit cannot know which of its rungs that limit will cut off.
        """
        reached = [expires_after_seconds is None or rung.after_seconds < expires_after_seconds for rung in self.ladder]
        return range(sum(reached))

    def climbed(self, rung: Rung) -> AskTerms:
        """Return the terms as they are from this rung on."""
        if rung.do == "remind":
            return self
        if rung.do == "delegate":
            return self.model_copy(update={"roles": rung.roles, "people": rung.people})
        roles = self.roles or ([] if self.people else ["operator"])
        return self.model_copy(
            update={
                "roles": list(dict.fromkeys([*roles, *rung.roles])),
                "people": list(dict.fromkeys([*self.people, *rung.people])),
            }
        )


def _is_shorter(seconds: int | None, before: int | None) -> bool:
    return seconds is not None and (before is None or seconds < before)


PLAIN_TERMS: Final = AskTerms()
