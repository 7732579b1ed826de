"""Command patterns: their meaning in allow and deny rules, and which are refused when a rule is read."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from turngate.domain.policy.facts import Match
from turngate.domain.policy.matchers import Matchers, RuleVerdict
from turngate.policies.facts import call_facts


def match(patterns: list[str], command: object, verdict: RuleVerdict) -> Match:
    facts = call_facts("{}", None)
    facts = type(facts)(
        arguments={"command": command},
        workspace=None,
        read_command=facts.read_command,
        resolve_path=facts.resolve_path,
    )
    return Matchers(command=patterns).match(facts, verdict=verdict)


ALLOWING = [
    ("git status", "git status", "yes"),
    ("git status", "git status x", "no"),
    ("git status", "/usr/bin/git status", "no"),
    ("/usr/bin/git status", "/usr/bin/git status", "yes"),
    ("ls *", "ls", "yes"),
    ("ls *", "ls -la /etc", "yes"),
    ("ls -la", "ls -al", "yes"),
    ("ls -la", "ls -l", "no"),
    ("ls -l *", "ls src -l", "yes"),
    ("cp * src", "cp a src", "yes"),
    ("cp * src", "cp -r a src", "no"),
    ("cp * src", "cp $X src", "no"),
    ("cp * src", "cp a b src", "no"),
    ("cat src/*", "cat src/a", "yes"),
    ("cat src/*", "cat src/a/b", "no"),
    ("cat src/**", "cat src/a/b", "yes"),
    ("cat src/**", "cat src/../x", "no"),
    ("cat src/*", "cat src/*", "no"),
    ("git log --output=*.txt", "git log --output=a.txt", "yes"),
    ("git log --output=*.txt", "git log --output a.txt", "yes"),
    ("git log --output=*.txt", "git log --output a.sh", "no"),
    ("git log --output=*.txt", "git log", "no"),
    ("git --no-pager log *", "git --no-pager log -p", "yes"),
    ("git --no-pager log *", "git log --no-pager", "no"),
    ("git status -s|--short", "git status --short", "yes"),
    ("git status -s|--short", "git status", "no"),
    ("npm run lint|test", "npm run test", "yes"),
    ("npm run lint|test", "npm run deploy", "no"),
    ("git push --dry-run *", "git push --dry-run origin", "yes"),
    ("git push --dry-run *", "git push -o --dry-run origin", "no"),
    ("git push --dry-run *", 'git push "$X" --dry-run', "no"),
    ("git checkout -- *", "git checkout -- -f", "yes"),
    ("git checkout -- *", "git checkout -f -- x", "no"),
    ("git checkout *", "git checkout -- x", "yes"),
    ("git diff x", "git diff -- x", "no"),
    ("rm -i *", "rm -- -i x", "no"),
    ("ls -r *", "ls -1r x", "no"),
    ("head --lines=5", "head --lines=6", "no"),
    ("ls *", "ls >/dev/null 2>&1 </dev/null", "yes"),
    ("ls *", "ls 2>x", "no"),
    ("ls *", "A=1 ls", "no"),
    ("*", "anything at -all", "yes"),
    ("*", "anything > x", "no"),
    ("bash check.sh", "bash check.sh", "yes"),
    ("sudo *", "sudo ls", "no"),
    ("docker ps *", "docker ps -a", "yes"),
]

DENYING = [
    ("rm", "rm x", "yes"),
    ("rm", "rmdir x", "no"),
    ("rm", "git rm x", "no"),
    ("/bin/rm", "rm x", "yes"),
    ("rm -rf", "rm -r -f x", "yes"),
    ("rm -rf", "rm -r x", "no"),
    ("rm -r|--recursive", "rm --recursive x", "yes"),
    ("rm -a-b", "rm -ab", "no"),
    ("rm -r|--recursive *", "rm -R x", "no"),
    ("rm -r", "rm -- -r", "no"),
    ("rm -r", "rm -f -- -r", "unclear"),
    ("rm -r", 'rm "$X"', "unclear"),
    ("rm -r", 'rm "x$X"', "no"),
    ("rm -r", "rm -- $X", "no"),
    ("rm /", "rm -rf //", "yes"),
    ("rm /", "rm -rf /tmp/..", "yes"),
    ("rm /etc/*", "rm x /etc/a/b", "yes"),
    ("rm /etc/*", "rm x/etc", "no"),
    ("rm /etc/*", "rm /et?/a", "unclear"),
    ("rm ~*", "rm ~/x", "unclear"),
    ("find -delete", "find . -name x -delete", "yes"),
    ("find -delete", "find . -maxdepth 1 -ls -type f", "no"),
    ("git push", "git push", "yes"),
    ("git push", "git --brand-new x push", "unclear"),
    ("git push", "git commit -m push", "no"),
    ("git push", 'git commit -m "$X"', "no"),
    ("git push", "git $X", "unclear"),
    ("git push --force", "git push --force-with-lease", "no"),
    ("git push --force", "git push --forc", "unclear"),
    ("make --force", "make --=x", "no"),
    ("git remote add", "git remote -v add x", "yes"),
    ("systemctl stop nginx", "systemctl stop other nginx", "yes"),
    ("kill 1", "kill 2 1", "yes"),
    ("curl --output=/etc/*", "curl x --output /etc/x", "yes"),
    ("curl --output=/etc/*", "curl x --output=/etc/x", "yes"),
    ("curl --output=/etc/*", "curl x --output=/tmp/x", "no"),
    ("curl -o=/etc/*", "curl x -o/etc/x", "yes"),
    ("curl -o=/etc/*", "curl x -o /etc/x", "yes"),
    ("curl -o=/etc/*", "curl x -so /etc/x", "unclear"),
    ("* --force", "anything --force", "yes"),
    ("make deploy", "make -j 4 deploy", "yes"),
    ("rm", "bash x.sh", "unclear"),
    ("rm", "ls 'unclosed", "unclear"),
    ("rm", "python3 x.py", "no"),
]


def test_allow_patterns_name_all_that_may_be_there() -> None:
    """An allow pattern covers a command when it names all of its words, in order."""
    assert [row for row in ALLOWING if match([row[0]], row[1], "allow") != row[2]] == []


@pytest.mark.parametrize("verdict", ["deny", "ask"])
def test_deny_patterns_name_what_must_be_there(verdict: RuleVerdict) -> None:
    """A deny or ask pattern matches a command that has at least what it names."""
    assert [row for row in DENYING if match([row[0]], row[1], verdict) != row[2]] == []


@pytest.mark.parametrize("command", [["ls"], 1, {"x": 1}, True])
@pytest.mark.parametrize("verdict", ["allow", "deny"])
def test_a_command_that_is_not_text_is_unclear(command: object, verdict: RuleVerdict) -> None:
    """A list of words, or anything but a text, as the command gives no answer."""
    assert match(["*"], command, verdict) == "unclear"


@pytest.mark.parametrize("verdict", ["allow", "deny"])
def test_a_call_without_a_command_does_not_match(verdict: RuleVerdict) -> None:
    """A rule about commands does not match a call without one."""
    assert match(["*"], None, verdict) == "no"


@pytest.mark.parametrize(
    ("pattern", "fix"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("git status && ls", "one simple command"),
        ("ls | head", "one simple command"),
        ("rm 'a b'", "without quotes"),
        ("ls $X", "one simple command"),
        ("ls\nrm", "cannot be seen"),
        ("ls\u00a0x", "cannot be seen"),
        ("r* x", "written out"),
        ("A=1 ls", "program's name"),
        ("-rf", "program's name"),
        ("g\u0456t status", "ASCII"),
        ("rm -r|", "alternative"),
        ("rm -r|x", "no flag"),
        ("rm x|-r", "a word of its own"),
        ("rm --re*", "written out"),
        ("rm --output=", "any value"),
        ("ls a**b", "be alone"),
        ("ls [a", "not closed"),
    ],
)
def test_meaningless_patterns_are_refused(pattern: str, fix: str) -> None:
    """A wrong pattern is refused when the rule is read, with what to write instead."""
    with pytest.raises(ValidationError, match=fix):
        Matchers(command=[pattern])


COMPOSED = [
    "{allowed}; {denied}",
    "{allowed} && {denied}",
    "{allowed} || {denied}",
    "{denied} | {allowed}",
    "{allowed} |& {denied}",
    "{allowed} & {denied}",
    "{allowed}\n{denied}",
    "{allowed} # x\n{denied}",
    "( {allowed}; {denied} )",
    "{{ {allowed}; {denied}; }}",
    "! {denied}",
    "if {allowed}; then {denied}; fi",
    "if {denied}; then {allowed}; fi",
    "while {allowed}; do {denied}; done",
    "for i in a b; do {denied}; done",
    "case x in *) {denied};; esac",
    "echo $({denied})",
    'echo "$({denied})"',
    "echo `{denied}`",
    "cat <({denied})",
    "cat <<E\n$({denied})\nE",
    'cat <<< "$({denied})"',
    "echo ${{x:-$({denied})}}",
    "env {denied}",
    "sudo -n {denied}",
    "timeout 5 {denied}",
    "xargs {denied}",
    "find . -exec {denied} \\;",
    "sh -c {quoted}",
    "bash -lc {quoted}",
    "eval {quoted}",
    "time {denied}",
    "f() {{ {denied}; }}",
]
ALLOWED = ["git status", "ls -la src", "rg foo"]
DENIED = ["rm -rf x", "rm -r x", "/bin/rm x -r", "rm --recursive x"]


@settings(max_examples=150, deadline=None)
@given(
    forms=st.lists(st.sampled_from(COMPOSED), min_size=1, max_size=3),
    allowed=st.sampled_from(ALLOWED),
    denied=st.sampled_from(DENIED),
)
def test_no_composition_hides_a_denied_command(forms: list[str], allowed: str, denied: str) -> None:
    """However a denied command is combined with an allowed line, the allow rule never matches and the deny rule does."""
    command = denied
    for form in forms:
        command = form.format(allowed=allowed, denied=command, quoted=shlex.quote(command))
    patterns = [
        "git status",
        "ls *",
        "rg *",
        "echo *",
        "cat *",
        "env *",
        "xargs *",
        "find *",
        "timeout *",
        "sh *",
        "bash *",
    ]
    assert match(patterns, command, "allow") != "yes"
    assert match(["rm -r|--recursive"], command, "deny") != "no"
