"""Scripts as files: what the loader refuses and says, the schema for editors, and every script that we ship."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator
from typer.testing import CliRunner

from turngate.cli.main import app
from turngate.domain.conversation.messages import Message, TextPart, ToolResultPart, user_message
from turngate.domain.errors import ConfigurationError, ModelError
from turngate.domain.tools.results import Ok
from turngate.models import ModelRequest, ScriptedModel
from turngate.models.script import parse_script

ROOT = Path(__file__).parents[3]
SHIPPED = ROOT / "turngate/models/script.schema.json"
SCHEMA = Draft7Validator(json.loads(SHIPPED.read_text(encoding="utf-8")))
HINT = re.compile(r"\A# yaml-language-server: \$schema=(\S+)\n")

MISTAKES = {
    "nothing": ("", "line 1, the script: it has to be a mapping: {responses: […]}"),
    "a list": ("[1]", "line 1, the script: it has to be a mapping: {responses: […]}"),
    "neither": ("name: x", "line 1, the script: a script has `responses`"),
    "both": ("responses: [{text: x}]\nruns: [{responses: [{text: x}]}]", "exactly one"),
    "an empty list": ("name: x\nresponses: []", "line 2, responses: the list is empty; it needs at least one entry"),
    "a key misspelled": ("responses:\n- txt: x", "line 2, responses[0]: there is no such key. Did you mean 'text'?"),
    "a key too high": (
        "responses:\n- text: x\n  tool: y",
        "line 3, responses[0]: there is no such key. 'tool' belongs below 'calls'.",
    ),
    "text at the top": ("text: x", "line 1, the script: there is no such key. 'text' belongs below 'responses'."),
    "when without cases": ("responses:\n- when: {kind: ok}", "'when' belongs below 'cases'."),
    "arguments": (
        "responses:\n- calls:\n  - {tool: a, arguments: {}}",
        "line 3, responses[0].calls[0]: there is no such key. Did you mean 'input'?",
    ),
    "a tool's name": (
        "responses:\n- calls:\n  - {name: a}",
        "line 3, responses[0].calls[0]: there is no such key. Did you mean 'tool'?",
    ),
    "no tool": ("responses:\n- calls:\n  - input: {}", "line 3, responses[0].calls[0].tool: `tool` is missing"),
    "one call": (
        "responses:\n- calls: {tool: a}",
        "line 2, responses[0].calls: it has to be a list: one `- …` line for each",
    ),
    "a bare call": (
        "responses:\n- calls: [read_file]",
        "line 2, responses[0].calls[0]: it has to be a mapping: {tool: …, input: {…}}",
    ),
    "a bare response": ("responses:\n- hello", "line 2, responses[0]: it has to be a mapping: {text: …, calls: […]}"),
    "input as text": (
        "responses:\n- calls:\n  - tool: a\n    input: '{}'",
        "line 4, responses[0].calls[0].input: it has to be a mapping: {name: value}; for the exact text",
    ),
    "input twice": (
        "responses: [{calls: [{tool: a, input: {}, raw_input: ''}]}]",
        "give `input` or `raw_input`, not both",
    ),
    "a bare error": (
        "responses:\n- error: server_error",
        "line 2, responses[0].error: it has to be a mapping: {class: server_error, message: …}",
    ),
    "a class": (
        "responses:\n- error: {class: rate_limit}",
        "line 2, responses[0].error.class: it is one of 'unreachable', ",
    ),
    "a class is meant": ("responses:\n- error: {class: rate_limit}", "Did you mean 'rate_limited'?"),
    "a finish reason": ("responses:\n- finish_reason: lenght", "Did you mean 'length'?"),
    "yes is no text": ("responses:\n- text: yes", "line 2, responses[0].text: it has to be text; put it in quotes"),
    "too long a delay": (
        "responses:\n- delay_seconds: 601",
        "line 2, responses[0].delay_seconds: it has to be less than or equal to 600",
    ),
    "cases and text": (
        "responses:\n- text: x\n  cases: [{text: y}]",
        "line 2, responses[0]: `cases` must be the only key; move text",
    ),
    "a when without kind": (
        "responses:\n- cases:\n  - when: {tool: a}",
        "line 3, responses[0].cases[0].when.kind: `kind` is missing",
    ),
    "JSON with tabs": (
        '{\n\t"responses": [\n\t\t{"txt": "x"}]}',
        "line 3, responses[0]: there is no such key. Did you mean 'text'?",
    ),
    # What a schema of draft 7 cannot say:
    "a case that hides others": (
        "responses:\n- cases: [{text: y}, {when: {kind: ok}}]",
        "line 2, responses[0]: a case without `when` always matches, so only",
    ),
    "a key twice": (
        "responses:\n- text: a\n  text: b",
        "my.yaml, line 3: the same key is in line 2; delete one of the two",
    ),
    "a key twice in JSON": (
        '{"responses": [{"text": "a"}],\n "responses": [{"text": "b"}]}',
        "my.yaml, line 2: the same key is in line 1",
    ),
}
FOR_THE_LOADER = {"a case that hides others", "a key twice", "a key twice in JSON"}


def scripts() -> Iterator[tuple[str, str]]:
    """Every script that we ship: its place, its text."""
    files = [*(ROOT / "examples").rglob("*.y*ml"), *(ROOT / "turngate/cli").rglob("*.y*ml*")]
    yield from (
        (str(file.relative_to(ROOT)), file.read_text(encoding="utf-8")) for file in files if "case" not in file.name
    )
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        blocks = re.findall(r"^```yaml\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        for number, block in enumerate(blocks, 1):
            value = yaml.safe_load(block)
            if isinstance(value, dict) and {"responses", "runs"} & value.keys():
                yield f"{page.relative_to(ROOT)}, block {number}", block


SCRIPTS = dict(scripts())


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_file_line_place_and_what_was_meant(mistake: str) -> None:
    """One problem only, and it says the fix."""
    script, says = MISTAKES[mistake]
    with pytest.raises(ConfigurationError) as caught:
        parse_script(script, "my.yaml")
    assert caught.value.message.startswith("my.yaml")
    assert says in caught.value.message
    assert len(caught.value.details.get("problems", [""])) == 1


@pytest.mark.parametrize("mistake", MISTAKES.keys() - FOR_THE_LOADER)
def test_the_schema_refuses_what_the_loader_refuses(mistake: str) -> None:
    """An editor marks the mistake before anything runs."""
    script, _says = MISTAKES[mistake]
    assert not SCHEMA.is_valid(yaml.safe_load(script.replace("\t", " ")))


def test_the_shipped_schema_is_that_of_the_types() -> None:
    """To renew the file: `turngate schema script > turngate/models/script.schema.json`."""
    printed = CliRunner().invoke(app, ["schema", "script"])
    assert printed.exit_code == 0
    assert SHIPPED.read_text(encoding="utf-8") == printed.stdout
    Draft7Validator.check_schema(json.loads(printed.stdout))


def test_every_key_is_described() -> None:
    """Editors show the description beside the completion."""
    forms: list[dict[str, Any]] = [SCHEMA.schema, *SCHEMA.schema["$defs"].values()]
    keys = [(form["title"], key, value) for form in forms for key, value in form.get("properties", {}).items()]
    assert len(keys) > 20
    assert [(title, key) for title, key, value in keys if not value.get("description")] == []


@pytest.mark.parametrize("place", SCRIPTS)
def test_every_script_that_we_ship_is_one(place: str) -> None:
    """Loader and schema accept examples, what `turngate init` writes, the demo's script and those in the docs."""
    parse_script(SCRIPTS[place], place)
    assert [error.message for error in SCHEMA.iter_errors(yaml.safe_load(SCRIPTS[place]))] == []


def test_every_script_file_names_the_schema_for_editors(tmp_path: Path) -> None:
    """By a relative path that there is, also in what `turngate init` writes."""
    hints = {
        place: HINT.match(text) for place, text in SCRIPTS.items() if "block" not in place and "scaffold" not in place
    }
    assert len(hints) >= 10
    assert {
        place: hint and (ROOT / place).parent.joinpath(hint[1]).resolve() for place, hint in hints.items()
    } == dict.fromkeys(hints, SHIPPED)
    assert CliRunner().invoke(app, ["init", str(tmp_path / "new")]).exit_code == 0
    written = HINT.match((tmp_path / "new/script.yaml").read_text(encoding="utf-8"))
    assert written is not None
    assert (tmp_path / "new" / written[1]).read_text(encoding="utf-8") == SHIPPED.read_text(encoding="utf-8")


def test_the_docs_have_scripts() -> None:
    """The check above reads the how-to."""
    assert any(place.startswith("docs/howto/script-a-model.md") for place in SCRIPTS)


async def test_a_script_without_an_answer_names_its_file_and_line() -> None:
    """Where a response has to be added, for one that is missing and for a case. A retry would not help."""
    model = ScriptedModel.from_text(
        "responses:\n- text: a\n- cases:\n  - {when: {kind: rejected}, text: b}\n", "a/my.yaml"
    )
    ok = Message(role="tool", parts=(ToolResultPart(tool_call_id="c", tool_name="pay", result=Ok(value={})),))
    answered = Message(role="assistant", parts=(TextPart(text="…"),))
    with pytest.raises(
        ModelError, match=r"no case at responses\[1\] \(my\.yaml, line 3\).*\(pay ok\); add one without"
    ) as caught:
        await model.generate(ModelRequest(messages=(user_message("go"), answered, ok)))
    missing = r"2 response\(s\).*asked once more: add one after responses\[1\] \(my\.yaml, line 3\)"
    with pytest.raises(ModelError, match=missing) as over:
        await model.generate(ModelRequest(messages=(user_message("go"), answered, answered)))
    for each in (caught.value, over.value):
        assert (each.error_class, each.retryable) == ("bad_response", False)
