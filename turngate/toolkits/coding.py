"""The coding agent's toolkit: files, search, shell, and a person to ask."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from turngate import Toolkit, interaction_tool
from turngate.toolkits.files import edit_file, list_directory, read_file, write_file
from turngate.toolkits.search import glob, grep
from turngate.toolkits.shell import bash

# ask_person: a question to a human, answered in the operators' inbox. Nothing runs.


class AskPersonParams(BaseModel):
    """The question, and the answers to choose from; no choices means free text."""

    model_config = ConfigDict(extra="forbid")

    question: str = Field(
        min_length=1, max_length=4_000, description="One clear question, with what is needed to answer."
    )
    choices: list[str] = Field(default=[], max_length=20, description="Suggested answers; leave empty for free text.")


class PersonAnswer(BaseModel):
    """What the person said."""

    answer: str


ask_person = interaction_tool(
    name="ask_person",
    description="Ask a person a question and wait for the answer. Use it when you lack knowledge or a decision that "
    "only a person has; not to ask for leave to use a tool, which is asked for by itself.",
    params=AskPersonParams,
    answer=PersonAnswer,
)


def coding_toolkit() -> Toolkit:
    """Return read_file, write_file, edit_file, list_directory, grep, glob, bash and ask_person.

    Reading and searching run without asking; writing, editing and every command wait for a person unless policy says
    otherwise. All need a run with a workspace.
    """
    return Toolkit.of(read_file, write_file, edit_file, list_directory, grep, glob, bash, ask_person)
