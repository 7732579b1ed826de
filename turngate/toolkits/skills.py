"""Skills: instructions in Markdown that an agent reads when a task calls for them, in place of one endless prompt.

The model always sees names and descriptions, the rest when it asks. ``skill_files`` owns what a skill is.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from pydantic import BaseModel, Field

from turngate import ToolFailure, Toolkit, tool
from turngate.toolkits.edits import Params
from turngate.toolkits.skill_files import SKILL_FILE, SkillFileUnavailable, find_skills

__all__ = ["SkillFileUnavailable", "UnknownSkill", "skills_toolkit"]

_LISTED_DESCRIPTION_CHARS = 300


class UnknownSkill(ToolFailure):
    """There is no skill of that name. ``available``: those there are."""

    name: str
    available: list[str]
    reason: str


class ReadSkillParams(Params):
    """Which file of which skill."""

    name: str = Field(description="One of the skills listed in this tool's description.")
    file: str = Field(default=SKILL_FILE, min_length=1, description="Relative path of a file that the skill mentions.")


class SkillText(BaseModel):
    """A file of a skill. ``files``: what else there is to read, told with SKILL.md only."""

    name: str
    file: str
    text: str
    files: list[str] = []


def skills_toolkit(folder: Path) -> Toolkit:
    """Return a toolkit with ``read_skill`` over the skills in this folder, which are looked for once, now.

    Texts are read anew with each call; names and descriptions stay as they were, so that the prompt stays the same and
    so does what an operator has approved. Files and folders whose names begin with ``.`` or ``_`` are left out.

    Raises:
        ConfigurationError: there is no such folder, no skill in it, or one that is wrong; the message says the fix.
    """
    skills = {skill.name: skill for skill in find_skills(folder)}
    lines = [f"- {skill.name}: {_listed(skill.description)}" for skill in skills.values()]

    @tool(
        effect="read",
        ask=False,
        failures=[UnknownSkill, SkillFileUnavailable],
        description="Read a skill: instructions for a kind of task, to be followed when the task is of that kind. Read it before "
        "you begin. The skills:\n" + "\n".join(lines),
    )
    async def read_skill(params: ReadSkillParams) -> SkillText:
        skill = skills.get(params.name)
        if skill is None:
            reason = f"there is no skill {params.name[:100]!r}; the skills are: {', '.join(skills)}"
            raise UnknownSkill(name=params.name[:100], available=list(skills), reason=reason)
        text = await asyncio.to_thread(skill.read, params.file)
        files = await asyncio.to_thread(skill.other_files) if params.file == SKILL_FILE else []
        return SkillText(name=skill.name, file=params.file, text=text, files=files)

    return Toolkit.of(read_skill)


def _listed(description: str) -> str:
    if len(description) <= _LISTED_DESCRIPTION_CHARS:
        return description
    return f"{description[:_LISTED_DESCRIPTION_CHARS]}…"
