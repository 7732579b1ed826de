"""Why an app can't be loaded, in its builder's terms: what is wrong, the builder's own lines, what may have been meant.

Owns the words for what goes wrong while a module is imported. Must not import the app, or run anything of it.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import linecache
import pkgutil
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, get_args, get_type_hints

from pydantic import BaseModel, ValidationError
from pydantic.errors import PydanticUserError

import turngate
from turngate.domain.errors import ConfigurationError, TurngateError
from turngate.domain.text.suggestions import did_you_mean, first_sentence, problems

_LIBRARIES: Final = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
OURS: Final = (*(Path(path).resolve() for path in _LIBRARIES), Path(inspect.getfile(turngate)).parent)
"""Directories whose frames say nothing about the builder's mistake."""
ELSEWHERE: Final = {
    "deps": "App(services=…)",
    "handoffs": "Toolkit.of(sub_agent(…), …)",
    "max_steps": "limits=Limits(steps=…)",
    "max_turns": "limits=Limits(steps=…)",
    "needs_approval": "ask=True",
    "output_type": "output=…",
    "prompt": "instructions=…",
    "requires_approval": "ask=True",
    "response_format": "output=…",
    "result_type": "output=…",
    "risk": 'a rule of the policy: risk = "high"',
    "sub_agents": "Toolkit.of(sub_agent(…), …)",
    "system": "instructions=…",
    "system_prompt": "instructions=…",
    "tools": "toolkit=Toolkit.of(…)",
}
"""What other frameworks, or people, call it → what it is here."""


@dataclass(frozen=True)
class Line:
    """One of the builder's lines that led to an error. ``name``: the function it is in; empty: the module itself."""

    file: str
    number: int
    name: str = ""

    def __str__(self) -> str:
        inside = f", in {self.name}" if self.name else ""
        return f"{shown_path(self.file)}, line {self.number}{inside}"


def shown_path(file: str) -> str:
    """Return a path as its reader would type it: relative below the current directory."""
    path, here = Path(file).resolve(), Path.cwd().resolve()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def load_error(target: str, error: BaseException) -> ConfigurationError:
    """Return what an app's module raised while it was imported, in words. ``details``: ``file`` and ``line``, where known."""
    lines = _own_lines(error)
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        lines.append(Line(error.filename, error.lineno))
    message = "\n".join([f"{target} cannot be loaded: {_problem(error)}", *_rendered(lines)])
    details = dict(error.details) if isinstance(error, TurngateError) else {}
    if lines:
        details |= {"file": lines[-1].file, "line": lines[-1].number}
    return ConfigurationError(message, **details)


def module_error(target: str, module: str, error: ModuleNotFoundError) -> ConfigurationError:
    """Return why the app's module was not found, or what it imports: where it was looked for, and what is there."""
    missing = error.name or module
    if not (module + ".").startswith(missing + "."):
        return load_error(target, error)
    here = [each.name for each in pkgutil.iter_modules([str(Path.cwd())])]
    return ConfigurationError(
        f"there is no module {module!r} in {Path.cwd()} or on PYTHONPATH.{did_you_mean(module, here)} "
        "Run the command from the directory that holds it, or make one with `turngate init DIR`"
    )


def _rendered(lines: list[Line]) -> Iterable[str]:
    """Yield the lines with their text, outermost first; an arrow marks the last one."""
    for line in lines:
        yield f"  {'→' if line is lines[-1] else ' '} {line}"
        text = linecache.getline(line.file, line.number).strip()
        if text:
            yield f"        {text}"


def _own_lines(error: BaseException) -> list[Line]:
    lines = []
    frames = traceback.extract_tb(error.__traceback__)
    for frame in frames:
        if is_own(frame.filename) and frame.lineno is not None:
            number = frame.lineno
            if frame is frames[-1] or not any(is_own(each.filename) for each in frames[frames.index(frame) + 1 :]):
                number = _line_of_keyword(frame, error) or number
            lines.append(Line(frame.filename, number, "" if frame.name == "<module>" else frame.name))
    return lines


def is_own(file: str) -> bool:
    """Tell whether a module's file is the builder's: neither a library's, nor Turngate's."""
    places = (Path(file).absolute(), Path(file).resolve())
    return not file.startswith("<") and not any(place.is_relative_to(ours) for place in places for ours in OURS)


def _line_of_keyword(frame: traceback.FrameSummary, error: BaseException) -> int | None:
    """Return the line of the keyword argument that an error is about: a call may be many lines long."""
    name = _unexpected(error) or next(iter(_places(error)), None)
    if name is None or frame.lineno is None:
        return None
    last = frame.end_lineno or frame.lineno
    lines = [
        node.value.lineno
        for node in ast.walk(_tree(frame.filename))
        if isinstance(node, ast.keyword) and node.arg == name and frame.lineno <= node.lineno <= last
    ]
    return lines[0] if lines else None


def _places(error: BaseException) -> list[str]:
    if not isinstance(error, ValidationError):
        return []
    return [str(issue["loc"][0]) for issue in error.errors(include_url=False, include_context=False) if issue["loc"]]


def _problem(error: BaseException) -> str:
    """Return what an exception means, in a sentence with a suggestion where there is one."""
    for kind, words in _WORDS.items():
        if isinstance(error, kind):
            return words(error)
    return f"{type(error).__name__}: {error}"


def _validation(error: ValidationError) -> str:
    model = getattr(turngate, error.title, None)
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        return f"{error.title}: " + "; ".join(
            f"{'.'.join(map(str, issue['loc']))}: {issue['msg']}" for issue in error.errors(include_url=False)
        )
    return f"{error.title}: " + "; ".join(
        f"{'.'.join(map(str, place))}: {message}" if place else message for place, message in problems(error, model)
    )


def _unusable_type(error: PydanticUserError) -> str:
    problem = first_sentence(error.message)
    return (
        f"{problem}. Use types with a JSON form: str, int, list, dict, datetime, Decimal, an Enum, or a pydantic model"
    )


def _missing_import(error: ModuleNotFoundError) -> str:
    parent, _dot, name = (error.name or "").rpartition(".")
    if not parent:
        known = [each.name for each in pkgutil.iter_modules()]
        return f"it imports {error.name!r}, which is not installed.{did_you_mean(name, known)}"
    spec = importlib.util.find_spec(parent)
    places = [] if spec is None or spec.submodule_search_locations is None else list(spec.submodule_search_locations)
    known = [each.name for each in pkgutil.iter_modules(places)]
    return f"there is no module {name!r} in {parent!r}.{did_you_mean(name, known)}"


def _missing_name(error: ImportError) -> str:
    _before, quoted, rest = str(error).partition("cannot import name '")
    name = rest.partition("'")[0]
    if not quoted or error.name is None:
        return f"ImportError: {error}"
    module = importlib.import_module(error.name)
    return f"there is no {name!r} in {error.name!r}.{did_you_mean(name, dir(module))}"


def _undefined(error: NameError) -> str:
    name = error.name or ""
    later = _defined_later(name, error)
    if later is not None:
        return f"{error} here: it is defined further down, in line {later}. Move the definition up"
    return f"{error}.{did_you_mean(name, _names_in_sight(error.__traceback__))}"


def _defined_later(name: str, error: NameError) -> int | None:
    """Return the line where the module itself defines the name, after the line that uses it; None: it does not."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_own(frame.filename)]
    if not frames:
        return None
    lines = []
    for node in _tree(frames[-1].filename).body:
        names = {target.id for target in getattr(node, "targets", []) if isinstance(target, ast.Name)}
        if name == getattr(node, "name", None) or name in names:
            lines.append(node.lineno)
    return next((line for line in lines if line > (frames[-1].lineno or 0)), None)


def _tree(file: str) -> ast.Module:
    """Return a file as a syntax tree; empty when it can't be read as one."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return ast.Module(body=[], type_ignores=[])


def _names_in_sight(trace: TracebackType | None) -> set[str]:
    names: set[str] = set()
    while trace is not None:
        names = {*trace.tb_frame.f_locals, *trace.tb_frame.f_globals}
        trace = trace.tb_next
    return names


def _unexpected(error: BaseException) -> str | None:
    _before, matched, rest = str(error).partition("got an unexpected keyword argument '")
    return rest.partition("'")[0] if matched and isinstance(error, TypeError) else None


def _type_error(error: TypeError) -> str:
    """Return a call that does not fit its function, with the function's own parameters."""
    text = str(error)
    called = text.partition("(")[0].removesuffix(".__init__")
    function = _public(called)
    if function is None:
        return f"TypeError: {text}"
    unexpected = _unexpected(error)
    if unexpected is not None:
        parameters = _parameters(function)
        suggestion = did_you_mean(unexpected, parameters)
        if called != "Toolkit.of" and unexpected in ELSEWHERE:
            suggestion = f" In Turngate that is {ELSEWHERE[unexpected]}"
        listed = "" if suggestion else f" It takes: {', '.join(parameters) or 'nothing by name'}."
        return f"{called}() has no parameter {unexpected!r}.{suggestion}{listed}"
    if "positional argument" in text and "takes" in text:
        if called in {"tool", "declare_tool"}:
            return '@tool needs parentheses: write @tool(effect="once")'
        listed = ", ".join(f"{name}=…" for name in _parameters(function, needed=True))
        return f"{called}() takes its arguments by name: {called}({listed})"
    if "missing" in text:
        names = text.rpartition(": ")[2]
        return f"{called}() needs {names}"
    return f"TypeError: {text}"


def _public(called: str) -> Callable[..., Any] | None:
    """Return what Turngate calls ``Agent``, ``tool`` or ``Toolkit.of``; None: it is not ours."""
    value: Any = turngate
    for name in called.split("."):
        if value is turngate and name not in turngate.__all__:
            return None
        value = getattr(value, name, None)
    return value if callable(value) else None


def _parameters(function: Callable[..., Any], *, needed: bool = False) -> list[str]:
    """Return the names that a function takes. ``needed``: only those without a default."""
    names = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:  # ``**options: Unpack[ToolOptions]``
            options = get_args(get_type_hints(function)[parameter.name])[0]
            names += [] if needed else sorted(options.__optional_keys__)
        elif parameter.kind is not parameter.VAR_POSITIONAL and not (
            needed and parameter.default is not parameter.empty
        ):
            names.append(parameter.name)
    return names


_WORDS: Final[dict[type[BaseException], Callable[[Any], str]]] = {
    TurngateError: lambda error: error.message,
    SyntaxError: lambda error: f"{type(error).__name__}: {error.msg}",
    ValidationError: _validation,
    PydanticUserError: _unusable_type,
    ModuleNotFoundError: _missing_import,
    ImportError: _missing_name,
    NameError: _undefined,
    AttributeError: lambda error: f"AttributeError: {error}.{did_you_mean(error.name or '', dir(error.obj))}",
    TypeError: _type_error,
    SystemExit: lambda error: f"it called sys.exit({error.code!r}) while it was imported",
}
"""Kind of exception → its words. The first one that fits counts."""
