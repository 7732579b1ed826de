"""Whether a pattern of an allow rule covers one simple command: all of its words, in order. See ``command_rules``. Pure."""

from __future__ import annotations

from turngate.domain.policy.command_line import SimpleCommand, Word
from turngate.domain.policy.command_pattern import CommandPattern, Flag, FlagName
from turngate.domain.policy.globs import has_wildcard, parse_glob


def allows(pattern: CommandPattern, command: SimpleCommand) -> bool:
    """Tell whether the pattern allows the command."""
    if not command.words or command.assigns:
        return False
    program = command.words[0].text
    if pattern.any_program and command.opaque is not None:
        return False  # who allows every program has not named this interpreter, and what it runs isn't read
    if not pattern.any_program and program not in pattern.programs:
        return False
    return _Walk(pattern, command.named).covers(command.words[1:])


class _Walk:
    """One pass over a command's words. ``done``: operands of the pattern met so far.

    ``named``: words that no ``*`` alone covers.
    """

    def __init__(self, pattern: CommandPattern, named: frozenset[str]) -> None:
        self._pattern = pattern
        self._named = named
        self._done = 0
        self._seen: set[Flag] = set()
        self._operands_only = False

    def covers(self, words: tuple[Word, ...]) -> bool:
        index = 0
        while index < len(words):
            word, following = words[index], words[index + 1] if index + 1 < len(words) else None
            used = self._takes(word, following, before=words[index - 1] if index else None)
            if not used:
                return False
            index += used
        return self._done == len(self._pattern.operands) and len(self._seen) == len(self._pattern.flags)

    def _takes(self, word: Word, following: Word | None, *, before: Word | None) -> int:
        """Return how many words were taken: 0 when this one is not covered."""
        if word.text is None:
            return 1 if self._in_rest else 0
        if not self._operands_only and word.text.startswith("-") and word.text not in {"-", "--"}:
            return self._takes_flag(word.text, following, before)
        return 1 if self._takes_operand(word.text) else 0

    @property
    def _in_rest(self) -> bool:
        return self._pattern.rest and self._done == len(self._pattern.operands)

    def _takes_operand(self, text: str) -> bool:
        if text == "--" and not self._operands_only:
            if self._done < len(self._pattern.operands):
                if self._pattern.operands[self._done] != ("--",):
                    return False
            elif not self._pattern.rest:
                return False
            self._operands_only = True
        if self._done == len(self._pattern.operands):
            return self._pattern.rest and text not in self._named
        if any(flag.after == self._done and flag not in self._seen for flag in self._pattern.flags):
            return False  # `git status --short` for the pattern `git --no-pager status`
        if not self._fits(self._pattern.operands[self._done], text):
            return False
        self._done += 1
        return True

    def _fits(self, globs: tuple[str, ...], text: str) -> bool:
        return any(fits_operand(glob, text) for glob in globs if glob != "*" or text not in self._named)

    def _takes_flag(self, text: str, following: Word | None, before: Word | None) -> int:
        here = [flag for flag in self._pattern.flags if flag.after == self._done]
        # In the rest a flag may be the value of the one before it: `git push -o --dry-run` pushes.
        certain = not (self._in_rest and _may_take_value(before, here))
        for flag in here:
            used = max((_words_used(name, text, following) for name in flag.names), default=0)
            if used:
                if certain:
                    self._seen.add(flag)
                return used
        if certain and self._takes_bundle(text, here):
            return 1
        return 1 if self._in_rest and text not in self._named else 0

    def _takes_bundle(self, text: str, here: list[Flag]) -> bool:
        """Take short flags that are bundled in one word: all of its letters are the pattern's, or it is in the rest."""
        bundled = {
            flag: name for flag in here for name in flag.names if name.value is None and _in_bundle(name.name, text)
        }
        if not bundled:
            return False
        named = {letter for name in bundled.values() for letter in name.name[1:]}
        if not self._in_rest and not set(text[1:]) <= named:
            return False
        self._seen.update(bundled)
        return True


def _words_used(name: FlagName, text: str, following: Word | None) -> int:
    """Return how many words write this flag: 0, 1 (``--flag``, ``--flag=value``, ``-ovalue``) or 2 (``--flag value``)."""
    if name.value is None:
        return 1 if text == name.name else 0
    if text == name.name:
        if following is None or following.text is None:
            return 0
        return 2 if fits_operand(name.value, following.text) else 0
    joined = f"{name.name}=" if name.name.startswith("--") else name.name
    return 1 if text.startswith(joined) and fits_operand(name.value, text.removeprefix(joined)) else 0


def _in_bundle(name: str, text: str) -> bool:
    """Tell whether short flags (``-r``, ``-rf``) are among those bundled in a word (``-fr``)."""
    if name.startswith("--") or text.startswith("--") or not text[1:].isalpha():
        return False
    return set(name[1:]) <= set(text[1:])


def _may_take_value(before: Word | None, here: list[Flag]) -> bool:
    if before is None:
        return False
    if before.text is None:
        return before.may_be_option
    named = any(name.name == before.text for flag in here for name in flag.names)
    return before.text.startswith("-") and before.text != "--" and "=" not in before.text and not named


def fits_operand(glob: str, text: str) -> bool:
    """Tell whether an operand fits a glob of an allow rule. ``*`` alone is any operand; other wildcards never cover ``..``."""
    if glob == "*":
        return True
    if has_wildcard(glob) and ".." in text.split("/"):
        return False
    return parse_glob(glob).fits(text)
