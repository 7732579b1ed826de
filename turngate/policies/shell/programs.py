"""Programs that run more than their own words say: shells, interpreters, and options that start other programs."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from turngate.domain.policy.command_line import Word
from turngate.policies.shell.options import OptionTable, names, read_options
from turngate.policies.shell.wrappers import Runs

SHELLS = names("sh bash zsh dash ksh ash mksh rbash csh tcsh fish")
_FOREIGN_SHELLS = frozenset({"csh", "tcsh", "fish"})
_SHELL_OPTIONS = OptionTable(
    flags="abcefhlmnprtuvxBCEHPT",
    valued="oO",
    long_flags=frozenset({"--login", "--norc", "--noprofile", "--posix", "--verbose", "--restricted"}),
)
_INPUTS = frozenset({"-", "/dev/stdin", "/dev/tty"})


def run_shell(program: str, args: Sequence[Word]) -> Runs:
    """Return what ``sh -c TEXT`` runs. A script file is opaque; a script from standard input is not known at all."""
    runs = Runs()
    options = read_options([word for word in args if not _is_plus_option(word)], _SHELL_OPTIONS)
    if options.problem is not None:
        runs.doubts.append(f"what {program!r} runs: {options.problem}")
    operand = options.rest[0] if options.rest else None
    if operand is None:
        if options.problem is None:
            runs.doubts.append(f"{program!r} reads what it runs from its input")
    elif operand.text is None:
        runs.doubts.append(f"{program!r} runs what only bash can know: {operand.raw!r}")
    elif options.has("-c"):
        runs.texts.append(operand.text)
        if program in _FOREIGN_SHELLS:
            runs.doubts.append(f"{program!r} has another language")
    elif _is_input(operand):
        runs.doubts.append(f"{program!r} reads what it runs from its input")
    else:
        runs.opaque = "runs a script, which is not read"
    return runs


def _is_input(word: Word) -> bool:
    """Tell whether a file's name may mean the program's own input. ``/proc/1//fd/0`` is one of many ways to write it."""
    text = word.text
    if text is None or text in _INPUTS:
        return True
    plain = posixpath.normpath(text)
    return plain.startswith(("/dev/fd", "/dev/std", "//dev", "//proc", "/proc")) or plain in _INPUTS


def _is_plus_option(word: Word) -> bool:
    return word.text is not None and re.fullmatch(r"\+[a-zA-Z]+", word.text) is not None


_INTERPRETERS: dict[str, tuple[str, OptionTable, str]] = {
    # program → (options that hold code, options, options that need no script)
    "python": ("-c", OptionTable(flags="bBdEhiIOPqsSuvVx?R", valued="cmWXQ"), "-m -V -h"),
    "perl": ("-e -E", OptionTable(flags="acfhlnpsStTuUvwWX", valued="eEIMmFx0CDi"), "-v -h"),
    "ruby": ("-e", OptionTable(flags="alnpsSvwyh", valued="eIrCEFKTWx0i"), "-v -h"),
    "node": ("-e -p", OptionTable(flags="vhic", valued="eprC"), "-v -h"),
    "php": ("-r -B -R -E", OptionTable(flags="aeHilmnqsvwh", valued="rBREcdfSt"), "-v -h -i -m -S -f"),
    "lua": ("-e", OptionTable(flags="iEWv", valued="el"), "-v"),
}
_OTHERS = "bun|deno|tclsh|rscript|osascript|guile|pwsh"
_VERSIONED = re.compile(rf"(python|pypy|perl|ruby|node|nodejs|php|lua|luajit|{_OTHERS})[0-9.]*w?")
_ALIASES = {"pypy": "python", "nodejs": "node", "luajit": "lua"}
_LONG_CODE = re.compile(r"--(?:eval|print|e|p)")
_LONG_QUERY = re.compile(r"--(?:version|help|test.*|check)")


def interpreter(program: str) -> str | None:
    """Return the interpreter a program's base name means: ``python3.11`` is ``python``."""
    match = _VERSIONED.fullmatch(program)
    return _ALIASES.get(match.group(1), match.group(1)) if match else None


def run_interpreter(name: str, args: Sequence[Word]) -> Runs:
    """Return how far an interpreter's words say what it does: code in them is opaque, code from its input not known."""
    runs = Runs()
    if name not in _INTERPRETERS:
        runs.opaque = "runs code, which is not read"
        if not args or _is_input(args[0]):
            runs.doubts.append(f"{name!r} reads what it runs from its input")
        return runs
    code, table, enough = _INTERPRETERS[name]
    options = read_options(args, table)
    long_form = next((word.text for word in args if word.text is not None and word.text.startswith("--")), "")
    if options.has(*code.split()) or _LONG_CODE.match(long_form):
        runs.opaque = "runs code given in its arguments, which is not read"
    elif options.problem is not None:
        if not _LONG_QUERY.fullmatch(long_form):
            runs.doubts.append(f"what {name!r} runs: {options.problem}")
    elif not options.has(*enough.split()) and (not options.rest or _is_input(options.rest[0])):
        runs.doubts.append(f"{name!r} reads what it runs from its input")
    return runs


_AWK = OptionTable(valued="Fv", flags="")
_AWK_RUNS = re.compile(r"system|getline|[|>@]")


def run_awk(program: str, args: Sequence[Word]) -> Runs:
    """Return whether an awk program may start others or write files: it may unless its text shows that it cannot."""
    runs = Runs()
    options = read_options(args, _AWK)
    text = options.rest[0].text if options.rest else None
    if options.problem is not None or text is None or _AWK_RUNS.search(text):
        runs.doubts.append(f"{program!r} may run commands or write files")
    return runs


_SED = OptionTable(
    flags="nErsuz",
    valued="ef",
    optional="i",
    long_flags=frozenset({"--quiet", "--silent", "--regexp-extended", "--separate", "--null-data", "--in-place"}),
    long_valued=frozenset({"--expression"}),
)
_DIGITS = frozenset("0123456789")
_BLANKS = frozenset(" \t\n")
_SED_COMMANDS = frozenset("pdqDPNnGgHhxl=")
_SED_FLAGS = frozenset("gpIi0123456789")


def _is_plain_script(text: str) -> bool:
    """Tell whether a sed script only prints, deletes and substitutes: every command is one that is known here."""
    at = 0
    while True:
        end = _sed_command(text, _past_blanks(text, at))
        if end is None:
            return False
        at = _past_blanks(text, end)
        separated = "\n" in text[end:at]
        if at < len(text) and text[at] == ";":
            separated = True
            at = _past_blanks(text, at + 1)
        if at == len(text):
            return True
        if not separated:
            return False


def _sed_command(text: str, at: int) -> int | None:
    """Return where the command that begins here ends; None: it is not known."""
    first = _sed_address(text, at)
    if first is not None:
        at = first
        if text[at : at + 1] == ",":
            second = _sed_address(text, at + 1)
            if second is None:
                return None
            at = second
    at = _past_blanks(text, at)
    if text[at : at + 1] == "!":
        at = _past_blanks(text, at + 1)
    command = text[at : at + 1]
    if command in _SED_COMMANDS:
        return at + 1
    return _sed_substitution(text, at + 1) if command == "s" else None


def _sed_address(text: str, at: int) -> int | None:
    first = text[at : at + 1]
    if first == "$":
        return at + 1
    if first == "/":
        return _past_delimiter(text, at + 1, "/")
    if first not in _DIGITS:
        return None
    while text[at : at + 1] in _DIGITS:
        at += 1
    return at


def _sed_substitution(text: str, at: int) -> int | None:
    delimiter = text[at : at + 1]
    if delimiter not in {"/", "|"}:
        return None
    middle = _past_delimiter(text, at + 1, delimiter)
    end = None if middle is None else _past_delimiter(text, middle, delimiter)
    while end is not None and text[end : end + 1] in _SED_FLAGS:
        end += 1
    return end


def _past_delimiter(text: str, at: int, delimiter: str) -> int | None:
    """Return the place after the next delimiter that no backslash escapes; None: there is none on the line."""
    while at < len(text) and text[at] != "\n":
        if text[at] == delimiter:
            return at + 1
        escaped = text[at] == "\\"
        if escaped and text[at + 1 : at + 2] in {"", "\n"}:
            return None
        at += 2 if escaped else 1
    return None


def _past_blanks(text: str, at: int) -> int:
    while text[at : at + 1] in _BLANKS:
        at += 1
    return at


def run_sed(program: str, args: Sequence[Word]) -> Runs:
    """Return whether a sed script may run commands or write files (``e``, ``w``): it may unless it is a plain one."""
    runs = Runs()
    options = read_options(args, _SED)
    scripts = options.values("-e", "--expression") or options.rest[:1]
    hidden = any(word.may_be_option and word.text is None for word in options.rest)
    late = any(word.text is not None and re.match(r"-[^-]*[ef]|--(?:e|f)", word.text) for word in options.rest[1:])
    plain = all(word.text is not None and _is_plain_script(word.text) for word in scripts)
    if options.problem is not None or options.has("-f") or not scripts or hidden or late or not plain:
        runs.doubts.append(f"{program!r} may run commands or write files")
    return runs


_RUNNING_OPTIONS: dict[str, str] = {
    # program → the options with which it starts other programs, or reads which ones from its configuration
    "rg": "--pre --hostname-bin",
    "sort": "--compress-program",
    "tar": "-I -F --use-compress-program --to-command --checkpoint-action --info-script --new-volume-script "
    "--rsh-command --rmt-command",
    "rsync": "-e --rsh --rsync-path",
    "scp": "-S -o -F",
    "sftp": "-S -o -F",
    "zip": "-T -TT --unzip-command",
    "man": "-P -H --pager --html",
    "less": "-k -K --lesskey-file",
    "fd": "-x -X --exec --exec-batch",
    "split": "--filter",
    "wget": "--use-askpass --config -e --execute",
    "curl": "-K --config",
    "gcc": "-wrapper -B -fplugin",
    "make": "--eval",
    "tcpdump": "-z",
    "nmap": "--script",
}


def run_with_options(program: str, args: Sequence[Word]) -> Runs:
    """Return a doubt when an option, or a word that may be one, makes a program start others."""
    runs = Runs()
    names = _RUNNING_OPTIONS[program].split()
    for word in args:
        if word.text == "--":
            break
        if word.text is None:
            if names and word.may_be_option:
                runs.doubts.append(f"what {program!r} runs: {word.raw!r} may be an option")
        elif any(_writes(name, word.text) for name in names):
            runs.doubts.append(f"{program!r} runs another program by {word.raw!r}")
    return runs


def has_running_options(program: str) -> bool:
    """Tell whether :func:`run_with_options` knows the program."""
    return program in _RUNNING_OPTIONS


def _writes(name: str, text: str) -> bool:
    written = text.partition("=")[0]
    if name.startswith("--"):
        return len(written) > 2 and name.startswith(written)  # noqa: PLR2004 - any abbreviation longer than '--'
    if len(name) == 2:  # noqa: PLR2004 - '-' and a letter, which may be in a bundle
        return text.startswith("-") and not text.startswith("--") and name[1] in written
    return text == name
