"""The matchers of a rule, put together: arguments, origin, command, paths, workspace. All must hold.

Fail closed: any ``no`` is ``no``, else any ``unclear`` is ``unclear``, else ``yes``. The caller takes ``unclear`` on an allow
rule as not matching, and on a deny or ask rule as *ask*. Pure; what needs the disk or a parser is in the facts.

An argument that a matcher reads and the call does not have (or has as null) is ``no`` for ``command`` and ``paths``: a rule over
many tools does not cover a call without a command or a path. Of several ``paths_at``, a deny rule needs one that fits, an
allow rule all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue

from turngate.domain.crashes import report_crash
from turngate.domain.policy.arguments import ArgumentMatcher
from turngate.domain.policy.command_pattern import parse_command_pattern
from turngate.domain.policy.commands import match_commands
from turngate.domain.policy.facts import LOOK_FAILED, CallFacts, Finding, Match
from turngate.domain.policy.paths import check_workspace_pattern, match_path, match_workspace, parse_path_pattern
from turngate.domain.text.json_pointers import ABSENT, checked_pointer, value_at

RuleVerdict = Literal["allow", "ask", "deny"]


def _checked_by(parse: Callable[[str], object]) -> AfterValidator:
    def check(text: str) -> str:
        parse(text)
        return text

    return AfterValidator(check)


Pointer = Annotated[str, _checked_by(checked_pointer)]
CommandText = Annotated[str, _checked_by(parse_command_pattern)]
PathText = Annotated[str, _checked_by(parse_path_pattern)]
WorkspaceText = Annotated[str, _checked_by(check_workspace_pattern)]


class Matchers(BaseModel):
    """What a rule asks of a call beyond its tool and agent. Empty: every call.

    ``command``: patterns of ``command_rules``, for the command line at ``command_at``. ``paths``: globs of ``path_rules``, for
    the path or list of paths at each of ``paths_at``. ``stdin``: the commands of an allow rule may get input from
    the line (a file, a pipe), whatever they make of it; those that only read text may without it. ``workspaces``: globs over the
    run's workspace. ``from_`` (in TOML: ``from``): the doubt about where an argument comes from that one of those at ``from_at``
    has to have.

    Reading one raises ValidationError for a pattern that is wrong, with the fix.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, validate_by_name=True, validate_by_alias=True, serialize_by_alias=True
    )

    args: list[ArgumentMatcher] = []
    command: list[CommandText] = []
    command_at: Pointer = "/command"
    stdin: bool = False
    paths: list[PathText] = []
    paths_at: list[Pointer] = Field(default=["/path"], min_length=1)
    workspaces: list[WorkspaceText] = Field(default=["*"], min_length=1)
    from_: Literal["untrusted", "nowhere"] | None = Field(default=None, alias="from")
    from_at: list[Pointer] = Field(default=[""], min_length=1)

    def match(self, facts: CallFacts, *, verdict: RuleVerdict) -> Match:
        """Tell whether the call is one the rule covers. Never raises."""
        return self.examine(facts, verdict=verdict).match

    def examine(self, facts: CallFacts, *, verdict: RuleVerdict) -> Finding:
        """As :meth:`match`, with the first reason for the answer. Never raises.

        What the arguments leave out is judged as if it were written. Where the tool reads the arguments otherwise than they are
        written, or its server says that it adds to them, each view is judged, and the strictest answer counts.
        """
        allowing = verdict == "allow"
        try:
            origin = None if self.from_ is None else self._origin(facts)
            findings = [
                self._examine(written, replace(facts, arguments=whole), origin, allowing=allowing)
                for written, whole in facts.views
            ]
            return _stricter(*findings, allowing=allowing)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong here must ask, and never end a run (DESIGN §6)
            report_crash(LOOK_FAILED, error)
            return Finding(match="unclear", reason=f"looking at the call failed: {type(error).__name__}")

    def _examine(self, written: JsonValue, facts: CallFacts, origin: Finding | None, *, allowing: bool) -> Finding:
        """Judge one view of the call. ``written``: the arguments without what ``facts`` has of what they leave out."""
        findings = [
            *(_argument(matcher, written, facts.arguments, allowing=allowing) for matcher in self.args),
            *([] if origin is None else [origin]),
            *([self._workspace(facts, allowing=allowing)] if self.workspaces != ["*"] else []),
            *([self._paths(facts, allowing=allowing)] if self.paths else []),
            *([self._command(facts, allowing=allowing)] if self.command else []),
        ]
        for answer in ("no", "unclear"):
            for finding in findings:
                if finding.match == answer:
                    return finding
        return findings[-1] if findings else Finding(match="yes", reason="the rule asks nothing more of the call")

    def _origin(self, facts: CallFacts) -> Finding:
        """Tell whether any argument at ``from_at`` has the doubt. What wasn't compared may have it, so that is unclear."""
        origins = facts.origins
        if origins is None:
            return Finding(match="unclear", reason=UNTRACED)
        for each in (each for pointer in self.from_at for each in origins.under(pointer)):
            if each.doubt == self.from_:
                return Finding(match="yes", reason=f"{each.label} is {each.words}")
        if not origins.complete:
            return Finding(match="unclear", reason="not everything that the model was sent could be compared")
        doubtful = [each for each in origins.items if each.doubt == self.from_]
        for pointer in self.from_at:
            if doubtful and _reads_more(facts, pointer):
                return Finding(match="unclear", reason=f"the tool may read {doubtful[0].label} at {pointer}")
        where = "" if "" in self.from_at else f" at {' or '.join(self.from_at)}"
        return Finding(match="no", reason=f"no argument{where} is from {self.from_}")

    def _command(self, facts: CallFacts, *, allowing: bool) -> Finding:
        line = value_at(facts.arguments, self.command_at)
        if line is ABSENT or line is None:
            return Finding(match="no", reason=f"the call has no command at {self.command_at}")
        if not isinstance(line, str):
            return Finding(match="unclear", reason=f"the command at {self.command_at} is not a text")
        return match_commands(self.command, facts.read_command(line), allowing=allowing, stdin=self.stdin)

    def _paths(self, facts: CallFacts, *, allowing: bool) -> Finding:
        findings = [self._path(pointer, facts, allowing=allowing) for pointer in self.paths_at]
        return _stricter(*findings, allowing=allowing)

    def _path(self, pointer: str, facts: CallFacts, *, allowing: bool) -> Finding:
        value = value_at(facts.arguments, pointer)
        if value is ABSENT or value is None:
            return Finding(match="no", reason=f"the call has no path at {pointer}")
        paths = value if isinstance(value, list) else [value]
        if not paths or not all(isinstance(path, str) for path in paths):
            return Finding(match="unclear", reason=f"at {pointer} is neither a path nor a list of paths")
        answers = {path: match_path(self.paths, path, facts, allowing=allowing) for path in paths}
        order: Sequence[Match] = ("no", "unclear", "yes") if allowing else ("yes", "unclear", "no")
        path = min(answers, key=lambda path: order.index(answers[path]))
        words = {"yes": "fits the rule's paths", "no": "fits none of the rule's paths", "unclear": "is unclear"}
        return Finding(match=answers[path], reason=f"where {path!r} leads {words[answers[path]]}")

    def _workspace(self, facts: CallFacts, *, allowing: bool) -> Finding:
        match = match_workspace(self.workspaces, facts, allowing=allowing)
        return Finding(match=match, reason=f"the run's workspace {facts.workspace!r} against {self.workspaces}")


UNTRACED: Final = "where the arguments come from isn't known here"


def _reads_more(facts: CallFacts, pointer: str) -> bool:
    """Tell whether the tool reads a value at a pointer that isn't written there: origins are those of what is written."""
    if facts.decoded is None:
        return False
    return not set(_texts(value_at(facts.decoded, pointer))) <= set(_texts(value_at(facts.arguments, pointer)))


def _texts(value: Any) -> Iterator[str]:
    """Yield the values in a value, as texts."""
    if isinstance(value, dict | list):
        for member in value.values() if isinstance(value, dict) else value:
            yield from _texts(member)
    elif value is not ABSENT and value is not None:
        yield str(value)


def _stricter(*findings: Finding, allowing: bool) -> Finding:
    order: Sequence[Match] = ("no", "unclear", "yes") if allowing else ("yes", "unclear", "no")
    return min(findings, key=lambda finding: order.index(finding.match))


def _argument(matcher: ArgumentMatcher, written: JsonValue, whole: JsonValue, *, allowing: bool) -> Finding:
    """Judge one argument. Whether it exists is about what the agent wrote; its value is also what the tool fills in."""
    value = "" if "value" not in matcher.model_fields_set else f" {matcher.value!r}"
    views = [written, whole]
    if matcher.op in {"exists", "absent"}:
        views = [written]
    elif value_at(written, matcher.at) is ABSENT:
        views = [whole]
    reason = f"argument {matcher.at} {matcher.op}{value}"
    return _stricter(*(Finding(match=matcher.match(view), reason=reason) for view in views), allowing=allowing)
