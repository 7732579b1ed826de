"""The coding agent's toolkit: files, search, shell, and a person to ask."""

from __future__ import annotations

from turngate import Toolkit
from turngate.toolkits.files import edit_file, list_directory, read_file, write_file
from turngate.toolkits.people import ask_person
from turngate.toolkits.search import glob, grep
from turngate.toolkits.shell import bash


def coding_toolkit() -> Toolkit:
    """Return read_file, write_file, edit_file, list_directory, grep, glob, bash and ask_person.

    Reading and searching run without asking; writing, editing and every command wait for a person unless policy says
    otherwise. All need a run with a workspace.
    """
    return Toolkit.of(read_file, write_file, edit_file, list_directory, grep, glob, bash, ask_person)
