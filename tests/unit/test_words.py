import importlib.machinery
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def _program() -> ModuleType:
    """Import scripts/words, which has no .py at its end."""
    loader = importlib.machinery.SourceFileLoader("words", str(ROOT / "scripts" / "words"))
    spec = importlib.util.spec_from_loader("words", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["words"] = module  # dataclasses look their module up
    writes_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    loader.exec_module(module)
    sys.dont_write_bytecode = writes_bytecode
    return module


words = _program()


def _hits(group: str, path: str, source: str = "") -> list[tuple[int, str]]:
    cues = {word.lower() for word in words.WORD.findall(source)}
    return [(hit.line, hit.word) for hit in words.hits_of(group, path, source, cues)]


def _one(group: str, path: str, source: str = "") -> list[str]:
    return [word for _, word in _hits(group, path, source)]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("It starts anew.", "anew"),
        ("Nobody is asked.", "nobody"),
        ("Whoever decides first wins.", "whoever"),
        ("Mend the settings.", "mend"),
        ("The decision stands.", "stands"),
        ("The run stands still.", "stands still"),
        ("Stored rules stand before the file's.", "stand"),
        ("the calls behind that step", "behind"),
        ("The model is told what ran.", "is told"),
        ("It beats no deny rule.", "beats"),
        ("Look at the log, as well.", "as well"),
        ("Two requests are under way.", "under way"),
        ("The run goes on.", "goes on"),
        ("what became of it", "became of"),
        ("A dry replay runs nothing.", "dry replay"),
    ],
)
def test_the_dialect_is_refused_in_a_text(text: str, word: str) -> None:
    """A phrase of the dialect in prose is a hit, at the start of a sentence too."""
    assert _one("texts", "docs/a.md", text) == [word]
    assert _one("texts", "turngate/a.py", f'"""{text}"""') == [word]
    assert _one("texts", "turngate/a.py", f"call()  # {text}") == [word]
    assert _one("texts", "turngate/a.html", f"<p>{text}</p>") == [word]
    assert _one("texts", "deploy/a.yaml", f"# {text}") == [word]


@pytest.mark.parametrize(
    "text",
    [
        "A star stands for any word, and a fake stands in for the server.",
        "A stand-alone worker.",
        "Run the API behind a proxy, behind your load balancer or behind a reverse proxy.",
        "The worker heartbeats twice a second.",
        "Files as well as folders.",
        "They told us that it failed.",
        "A signal of Temporal's, and a control call.",
        "It may amend the commit.",
        "He said so and asked what was found.",
    ],
)
def test_plain_english_is_not_refused(text: str) -> None:
    """A word of the dialect in its ordinary meaning is no hit."""
    assert _hits("texts", "docs/a.md", text) == []
    assert _hits("texts", "turngate/a.py", f'"""{text}"""') == []


def test_a_phrase_is_seen_over_line_ends() -> None:
    """A phrase counts when a line ends in it, in Markdown, in comments and in joined strings."""
    assert _hits("texts", "docs/a.md", "First.\nThe model is\ntold so.\n") == [(2, "is told")]
    assert _hits("texts", "turngate/a.py", "x = 1\n# The model is\n# told so.\n") == [(2, "is told")]
    assert _hits("texts", "turngate/a.py", 'x = ("The model is "\n    "told so.")\n') == [(1, "is told")]
    assert _hits("texts", "turngate/a.py", 'x = ("is", "told")  # is\ny = 2  # told\n') == []


def test_code_is_no_text() -> None:
    """Code in a text is left alone: inline code, code blocks but for their comments, and addresses of links."""
    assert _hits("texts", "docs/a.md", "The call `anew()` and ``mend``, [here](mend.md).") == []
    assert _hits("texts", "docs/a.md", "```sh\nmend --anew\n```\n") == []
    assert _hits("texts", "docs/a.md", "```sh\nturngate up    # start anew\n```\nanew") == [(2, "anew"), (4, "anew")]
    assert _hits("texts", "turngate/a.py", "nobody = mend(anew)\n") == []
    assert _hits("texts", "turngate/a.py", '"""Call ``mend`` or `anew`."""\n') == []


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("told = 1", "told"),
        ("def _found(): ...", "found"),
        ("def f(*, given): ...", "given"),
        ("def f(**kept): ...", "kept"),
        ("class Told: ...", "told"),
        ("self.shown = 1", "shown"),
        ("class A:\n    asked: int", "asked"),
        ("for made in []: ...", "made"),
        ("with a as heard: ...", "heard"),
        ("import a as said", "said"),
        ("match x:\n    case [*told]: ...", "told"),
        ("try: ...\nexcept ValueError as told: ...", "told"),
        ("[0 for found in x]", "found"),
        ("on_told = None", "told"),
        ("class OutcomeTold: ...", "told"),
        ("class UnderWay: ...", "under way"),
        ("def stands_still(): ...", "stands"),
        ("class OneByOne: ...", "one by one"),
        ("class Settling: ...", "Settling"),
        ("class RunManager: ...", "manager"),
        ("class ToolInfo: ...", "info"),
    ],
)
def test_the_dialect_is_refused_in_a_name(source: str, word: str) -> None:
    """A name that says nothing about its value is a hit where it is bound."""
    assert _one("names", "turngate/a.py", source) == [word]


@pytest.mark.parametrize(
    "source",
    [
        "not_found = is_shown = 1",
        "class NotFound(Exception): ...",
        "has_asked = True",
        "logger.info(reply.data)",
        "print(other.told, found)",
        "call(found=1)",
        "info = data = 1",
        "recommended = amends = 1",
        "class Finding: ...",
        "class Settings: ...",
        "class InfoBar: ...",
        '"""told = 1"""',
        "# found = 1",
        "from a import told",
    ],
)
def test_other_names_are_not_refused(source: str) -> None:
    """Longer names, and what others named, are no hits."""
    assert _hits("names", "turngate/a.py", source) == []


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("approvals_api/talking.py", "talking.py"),
        ("tests/unit/test_mending.py", "mending"),
        ("workflows/under_way.py", "under way"),
        ("turngate/mending/a.py", "mending"),
        ("turngate/utils.py", "utils"),
        ("docs/why-a-run-stands-still.md", "stands"),
    ],
)
def test_the_dialect_is_refused_in_a_file_name(path: str, word: str) -> None:
    """Files and folders are named with nouns or imperatives."""
    assert _one("files", path) == [word]


@pytest.mark.parametrize(
    "path",
    [
        "turngate/testing/engine.py",
        "activities/planning/planner.py",
        "send_message.py",
        "CONTRIBUTING.md",
        "database.py",
    ],
)
def test_other_file_names_are_not_refused(path: str) -> None:
    """Nouns in -ing are fine, and so are the names that everyone knows."""
    assert _hits("files", path) == []


def test_each_exception_names_files_that_are_there() -> None:
    """Exceptions do not outlive what they are about, and each exception has a reason."""
    paths = words.all_files()
    for pattern, _, reason in words.EXCEPTIONS:
        assert reason
        assert any(words.fnmatch.fnmatch(path, pattern) for path in paths), pattern


def test_the_program_explains_itself() -> None:
    """`scripts/words --help` says what is checked and where exceptions go, and a clean file makes exit code 0."""
    program = [sys.executable, str(ROOT / "scripts" / "words")]
    explained = subprocess.run([*program, "--help"], capture_output=True, text=True, check=True).stdout
    assert "EXCEPTIONS" in explained
    assert subprocess.run([*program, "Makefile"], capture_output=True, text=True, check=True).stdout == ""
