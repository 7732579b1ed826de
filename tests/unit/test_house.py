"""The layout of the house: folders that fit on a screen, and no module of a few lines for one other.

Import contracts (`.importlinter`) check directions and cycles.

The lists of exceptions can only shrink: an entry that is no longer needed fails the test, so it is deleted with its cause.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("turngate", "workflows", "activities", "approvals_api")
MOST_ENTRIES = 25
FEWEST_LINES = 60

CROWDED: dict[str, str] = {}
"""Folder → why it may show more than 25 modules and folders."""

SMALL: dict[str, str] = {
    "activities/close_step.py": "an activity: one file each",
    "activities/open_scheduled.py": "an activity: one file each",
    "approvals_api/gateway/expedite.py": "one thing asked of Temporal's server, with the versions that know it",
    "approvals_api/pages/system/health_routes.py": "a page: its route",
    "approvals_api/v1/agents.py": "a noun of the API: its router",
    "approvals_api/v1/health.py": "a noun of the API: its router",
    "turngate/cli/default_app.py": "an app that is loaded by name, as a builder's is",
    "turngate/domain/contract/names.py": "the names on the wire, read beside recorded histories",
    "turngate/models/pydantic_ai/loader.py": "imports nothing of the extra, which its neighbours do",
    "turngate/runtime/secret_files.py": "opens files; settings declare what there is",
    "turngate/store/access/idempotent_answers.py": "SQL stays in the store; its importer is an operation",
    "turngate/store/live/badges.py": "SQL stays in the store; its importer is a page",
    "turngate/toolkits/coding.py": "a toolkit that builders import",
}
"""Module of less than 60 lines with a single importer → why it is a module of its own."""


def modules() -> Iterator[Path]:
    """Every module of the product once, relative to the root; migrations and the demo's own project are data."""
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            if not file.is_symlink() and not {"versions", "demo_project", "__pycache__"} & set(file.parts):
                yield file.relative_to(ROOT)


@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.Module]:
    return {file: ast.parse((ROOT / file).read_text("utf-8")) for file in [*modules(), Path("worker.py")]}


def importers(trees: dict[Path, ast.Module]) -> dict[str, set[str]]:
    """Dotted module → the modules that import it, wherever in their text; type-checking imports count."""
    names = {_dotted(file) for file in trees}
    by_target: dict[str, set[str]] = defaultdict(set)
    for file, tree in trees.items():
        for target in _imports(tree, names):
            if target != _dotted(file):
                by_target[target].add(_dotted(file))
    return by_target


def test_a_folder_shows_at_most_25_entries() -> None:
    """More than that means that a family inside has no folder yet."""
    entries: dict[str, set[str]] = defaultdict(set)
    for file in modules():
        for parent, child in zip(file.parents, [file, *file.parents], strict=False):
            if child.name != "__init__.py" and parent != Path():
                entries[parent.as_posix()].add(child.name)
    crowded = {folder for folder, inside in entries.items() if len(inside) > MOST_ENTRIES}
    assert crowded == set(CROWDED)


def test_a_small_module_has_more_than_one_importer(trees: dict[Path, ast.Module]) -> None:
    """What only one module uses belongs in that module."""
    used_by = importers(trees)
    small = {
        file.as_posix()
        for file in modules()
        if file.name != "__init__.py"
        and len((ROOT / file).read_text(encoding="utf-8").splitlines()) < FEWEST_LINES
        and len(used_by[_dotted(file)]) == 1
    }
    assert small == set(SMALL)


VIEWS_WITH_TEXTS = frozenset({
    "ApprovalView", "CallView", "CommentView", "DecisionView", "EarlierApproval", "ExternalCallView", "LatestMessage",
    "MessageView", "PastCall", "PrecedentCase", "RequestDetail", "RequestItem", "RunDetail", "RunSummary", "SiblingView",
    "StepView", "WaitingMessage",
})  # fmt: skip
"""Views that say what a model, a tool or a person wrote about a run."""

ROWS_WITH_TEXTS = frozenset({"calls", "comments", "executions", "messages", "queued_messages", "steps"})
"""The store's modules whose rows say it."""
STORE = "turngate.store"

OF_MASKED_ROWS: dict[str, str] = {
    "approvals_api/requests/precedents.py _sibling": "its caller masks the view",
    "approvals_api/requests/views.py _latest_message": "its caller masks the messages",
    "approvals_api/runs/explain.py _summary": "of a run's detail, which is masked",
    "approvals_api/runs/plan.py _past_call": "its caller masks the calls",
    "approvals_api/runs/step_views.py call_view": "its callers mask the calls",
    "approvals_api/runs/step_views.py _step_view": "its caller masks the messages and calls",
    "approvals_api/runs/views.py message_views": "its callers mask the messages",
}
"""Function that makes such views without `Masks` → why. What calls it uses `Masks`."""

UNMASKED: dict[str, str] = {
    "approvals_api/pages/conversation_routes.py _newest": "reads which message is the newest",
    "approvals_api/pages/policy/script_routes.py _messages_of": "shows which entry of a script a message is, and no text of it",
    "approvals_api/external_calls/views.py _view": "for the program that sent the call and runs it, and no one else",
    "approvals_api/runs/explain.py _live": "of a run's detail, which is masked",
    "approvals_api/runs/explain.py explained_end": "of a run's detail, which is masked",
}
"""The same, and what calls it doesn't either."""


def test_views_of_calls_results_and_comments_are_made_through_masks(trees: dict[Path, ast.Module]) -> None:
    """A function that makes such a view, or a page or endpoint that reads such rows, uses `Masks`."""
    functions = [each for file in trees if file.parts[0] == "approvals_api" for each in _functions(file, trees[file])]
    raw = {each.place for each in functions if each.names & VIEWS_WITH_TEXTS and not each.has_masks}
    raw |= {each.place for each in functions if each.is_surface and each.reads_rows and not each.has_masks}
    builders = [each for each in functions if each.place in OF_MASKED_ROWS]
    callers = {each.place for each in functions if not each.has_masks and any(map(each.calls, builders))}
    assert raw | callers == {*OF_MASKED_ROWS, *UNMASKED}


@pytest.mark.parametrize("exceptions", [CROWDED, SMALL, OF_MASKED_ROWS, UNMASKED])
def test_an_exception_has_a_reason(exceptions: dict[str, str]) -> None:
    """The next reader need not guess why it is in the list."""
    assert all(exceptions.values())


@dataclass(frozen=True)
class _Function:
    """A function of the API. ``names``: what it calls, and the modules whose members it calls."""

    file: Path
    name: str
    names: frozenset[str]
    has_masks: bool
    reads_rows: bool

    @property
    def place(self) -> str:
        return f"{self.file.as_posix()} {self.name}"

    @property
    def is_surface(self) -> bool:
        return bool({"v1", "pages"} & set(self.file.parts))

    def calls(self, other: _Function) -> bool:
        return other.name in self.names and (self.file == other.file or not other.name.startswith("_"))


def _functions(file: Path, tree: ast.Module) -> Iterator[_Function]:
    stored = [each for each in tree.body if isinstance(each, ast.ImportFrom) and (each.module or "").startswith(STORE)]
    rows = ROWS_WITH_TEXTS & {alias.name for each in stored for alias in each.names}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside = list(ast.walk(node))
            words = {each.id for each in inside if isinstance(each, ast.Name)}
            words |= {each.arg for each in inside if isinstance(each, ast.arg)}
            called = [each.func for each in inside if isinstance(each, ast.Call)]
            members = [each for each in called if isinstance(each, ast.Attribute)]
            names = {each.id for each in called if isinstance(each, ast.Name)} | {each.attr for each in members}
            names |= {each.value.id for each in members if isinstance(each.value, ast.Name)}
            yield _Function(file, node.name, frozenset(names), bool({"Masks", "masks"} & words), bool(rows & names))


def _dotted(file: Path) -> str:
    name = ".".join(file.with_suffix("").parts).removesuffix(".__init__")
    return name if file.parts[0] == "turngate" else f"turngate.{name}"


def _imports(tree: ast.Module, names: set[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in names else node.module
