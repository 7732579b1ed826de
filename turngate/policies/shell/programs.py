"""Programs that run more than their own words say: shells, interpreters, and options that start other programs."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from turngate.domain.policy.command_line import Word, unknown
from turngate.policies.shell.options import OptionTable, names, read_options
from turngate.policies.shell.wrappers import Runs

SHELLS = names("sh bash zsh dash ksh ash mksh rbash yash oksh csh tcsh fish")
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


_QUERIES = frozenset({"--version", "--help"})
_ENOUGH = "-v -h --version --help"
_INTERPRETERS: dict[str, tuple[str, OptionTable, str]] = {
    # program → (options that hold code, options, options that need no script)
    "python": (
        "-c",
        OptionTable(flags="bBdEhiIOPqsSuvVx?R", valued="cmWXQ", long_flags=_QUERIES),
        "-m -V -h --version --help",
    ),
    "perl": ("-e -E", OptionTable(flags="acfhlnpsStTuUvwWX", valued="eEIMmFx0CDi", long_flags=_QUERIES), _ENOUGH),
    "ruby": ("-e", OptionTable(flags="alnpsSvwyh", valued="eIrCEFKTWx0i", long_flags=_QUERIES), _ENOUGH),
    "node": (
        "-e -p --eval --print",
        OptionTable(
            flags="vhic",
            valued="eprC",
            long_flags=_QUERIES
            | names(
                "--check --test --test-only --watch --no-warnings --trace-warnings --enable-source-maps --expose-gc"
            )
            | names("--inspect --inspect-brk --experimental-strip-types --experimental-vm-modules"),
            long_valued=names("--eval --print --max-old-space-size"),
        ),
        f"{_ENOUGH} --test",
    ),
    "php": (
        "-r -B -R -E",
        OptionTable(flags="aeHilmnqsvwh", valued="rBREcdfSt", long_flags=_QUERIES),
        f"{_ENOUGH} -i -m -S -f",
    ),
    "lua": ("-e", OptionTable(flags="iEWv", valued="el"), "-v"),
}
_PYTHONS_LAST = re.compile(r"-[bBdEhiIOPqsSuvVx?R]*+[cm].*", re.DOTALL)
_CODE_MODULES = names("asyncio code idlelib pdb timeit")
"""Modules of Python that run code from their arguments or their input."""
_OTHERS = (
    "tclsh|wish|rscript|Rscript|R|osascript|guile|racket|sbcl|janet|clojure|bb|julia|octave|elixir|iex|erl|escript|ocaml|ghc|runghc|"
    "swipl|scala|groovy|jshell|raku|crystal|jython|ipython|micropython|qjs|ts-node|tsx|elvish|nu|xonsh"
)
"""Interpreters whose options aren't read: whatever they are given may be code."""
_VERSIONED = re.compile(rf"(python|pypy|perl|ruby|node|nodejs|php|lua|luajit|{_OTHERS})[0-9.]*w?")
_ALIASES = {"pypy": "python", "nodejs": "node", "luajit": "lua"}


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
    options = read_options(_pythons_own(args) if name == "python" else args, table)
    modules = options.values("-m") if name == "python" else []
    if options.has(*code.split()) or any(module.text is None or module.text in _CODE_MODULES for module in modules):
        runs.opaque = _CODE_IN_ARGUMENTS
    if options.problem is not None:
        runs.doubts.append(f"what {name!r} runs: {options.problem}")
    elif runs.opaque is None and not options.has(*enough.split()) and (not options.rest or _is_input(options.rest[0])):
        runs.doubts.append(f"{name!r} reads what it runs from its input")
    return runs


def _pythons_own(args: Sequence[Word]) -> Sequence[Word]:
    """Return Python's options, without what follows ``-m`` or ``-c`` and its value: that is for the module or the code."""
    last = next((at for at, word in enumerate(args) if _PYTHONS_LAST.fullmatch(word.text or "")), len(args))
    return args[: last + 2]


_CODE_IN_ARGUMENTS = "runs code given in its arguments, which is not read"
_RUNTIME_CODE = re.compile(r"exec|eval|data:.*|-[a-df-oq-z]*+[ep].*|--(?:eval|print|ext).*", re.DOTALL)


def run_runtime(program: str, args: Sequence[Word]) -> Runs:
    """Return what ``bun`` or ``deno`` runs: a task or a file, unless any of the words may stand for code or for its input."""
    texts = [word.text for word in args if word.text is not None]
    runs = Runs(texts=texts[texts.index("exec") + 1 :][:1] if "exec" in texts else [])
    if any(_RUNTIME_CODE.fullmatch(text) for text in texts):
        runs.opaque = _CODE_IN_ARGUMENTS
    hidden = any(word.may_be_option if word.text is None else _is_input(word) or word.text == "repl" for word in args)
    if hidden or not any(text in _QUERIES or not text.startswith("-") for text in texts):
        runs.doubts.append(f"{program!r} reads what it runs from its input")
    return runs


_PWSH_FLAGS = names("-nologo -noprofile -nop -noninteractive -noni -login -l -file -f")


def run_pwsh(args: Sequence[Word]) -> Runs:
    """Return what ``pwsh`` runs. It takes abbreviated options, other dashes, any case: only a plain script is no code."""
    rest = list(args)
    while rest and (rest[0].text or "").lower() in _PWSH_FLAGS:
        rest = rest[1:]
    if not rest or _is_input(rest[0]):
        return Runs(doubts=["'pwsh' reads what it runs from its input"])
    script = rest[0].text or ""
    is_plain = script.endswith(".ps1") and script[0].isascii() and not script.startswith("-")
    return Runs() if is_plain else Runs(opaque=_CODE_IN_ARGUMENTS)


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
_TO_SLASH = r"(?:[^/\\\n]|\\[^\n])*+/"
_TO_BAR = r"(?:[^|\\\n]|\\[^\n])*+[|]"
_BLANKS = r"[ \t\n]*+"
_ADDRESS = rf"(?:[0-9]++|\$|/{_TO_SLASH})"
_SUBSTITUTION = rf"s(?:/{_TO_SLASH}{_TO_SLASH}|[|]{_TO_BAR}{_TO_BAR})[gpIi0-9]*+"
_COMMAND = rf"(?:{_ADDRESS}(?:,{_ADDRESS})?+)?+{_BLANKS}!?+{_BLANKS}(?:[pdqDPNnGgHhxl=]|{_SUBSTITUTION})"
_SEPARATOR = rf"[ \t]*+(?:\n{_BLANKS};?+{_BLANKS}|;{_BLANKS})"
_PLAIN_SED = re.compile(rf"{_BLANKS}{_COMMAND}(?:{_SEPARATOR}{_COMMAND})*+{_BLANKS};?+{_BLANKS}")
"""A script that only prints, deletes and substitutes. Nothing in it is read twice."""


def run_sed(program: str, args: Sequence[Word]) -> Runs:
    """Return whether a sed script may run commands or write files (``e``, ``w``): it may unless it is a plain one."""
    runs = Runs()
    options = read_options(args, _SED)
    scripts = options.values("-e", "--expression") or options.rest[:1]
    hidden = any(word.may_be_option and word.text is None for word in options.rest)
    late = any(word.text is not None and re.match(r"-[^-]*[ef]|--(?:e|f)", word.text) for word in options.rest[1:])
    plain = all(word.text is not None and _PLAIN_SED.fullmatch(word.text) for word in scripts)
    if options.problem is not None or options.has("-f") or not scripts or hidden or late or not plain:
        runs.doubts.append(f"{program!r} may run commands or write files")
    return runs


_RUNNING_OPTIONS: dict[str, str] = {
    # program → the options with which it starts other programs, or reads which ones from its configuration
    "rg": "--pre --hostname-bin",
    "sort": "--compress-program",
    "tar": "-I -F --use-compress-program --to-command --checkpoint-action --info-script --new-volume-script "
    "--rsh-command --rmt-command",
    "bsdtar": "-I --use-compress-program",
    "rsync": "-e --rsh --rsync-path",
    "scp": "-S -o -F -D",
    "sftp": "-S -o -F -D -b",
    "zip": "-T -TT --unzip-command",
    "man": "-P -H --pager --html",
    "less": "-k -K --lesskey-file",
    "fd": "-x -X --exec --exec-batch",
    "split": "--filter",
    "wget": "--use-askpass --config -e --execute",
    "curl": "-K --config",
    **dict.fromkeys(("gcc", "g++", "cc", "c++"), "-wrapper -B -fplugin -specs --specs"),
    **dict.fromkeys(("clang", "clang++"), "-B -fplugin -fpass-plugin -load -Xclang -specs --config"),
    **dict.fromkeys(("make", "gmake"), "--eval"),
    "tcpdump": "-z",
    "nmap": "--script",
}

_COMPILERS = names("gcc g++ cc c++ clang clang++")
"""Their options have one dash and several letters."""


def run_with_options(program: str, args: Sequence[Word]) -> Runs:
    """Return a doubt when an option, or a word that may be one, makes a program start others."""
    runs = Runs()
    names = _RUNNING_OPTIONS.get(program, "").split()
    bundles = program not in _COMPILERS
    if program in {"tar", "gtar", "bsdtar"} and args:
        args = [_with_dash(args[0]), *args[1:]]
    for word in args:
        if word.text == "--":
            break
        if word.text is None:
            if names and word.may_be_option:
                runs.doubts.append(f"what {program!r} runs: {word.raw!r} may be an option")
        elif any(_writes(name, word.text, bundles=bundles) for name in names):
            runs.doubts.append(f"{program!r} runs another program by {word.raw!r}")
    return runs


def _with_dash(word: Word) -> Word:
    """Return tar's first word as the bundle of options that it is, with or without a dash (``tar cIf 'sh -c …' x.tar``)."""
    if word.text is None:
        return word if word.may_be_option else unknown(word.raw)
    return word if word.text.startswith("-") else Word(text=f"-{word.text}", raw=word.raw)


def _writes(name: str, text: str, *, bundles: bool) -> bool:
    written = text.partition("=")[0]
    if name.startswith("--"):
        return len(written) > 2 and name.startswith(written)  # noqa: PLR2004 - any abbreviation longer than '--'
    if len(name) == 2 and bundles:  # noqa: PLR2004 - '-' and a letter, which may be in a bundle
        return text.startswith("-") and not text.startswith("--") and name[1] in written
    return text.startswith(name)
