"""Skills: instructions in Markdown that an agent reads when a task calls for them, in place of one endless prompt.

The model always sees names and descriptions, the rest when it asks. ``skill_files`` owns what a skill is.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BaseModel, Field, ValidationError

from turngate import ConfigurationError, ToolFailure, Toolkit, tool
from turngate.toolkits.edits import Params
from turngate.toolkits.text_files import NotText, TooLarge, read_text
from turngate.toolkits.workspace import FileUnavailable, OutsideWorkspace, Place, printable

# A folder of skills: finding them, checking their front matter, reading their files and nothing outside their folders.
#
# A skill is ``name.md``, or a folder with a ``SKILL.md`` and whatever files that refers to. Both begin with YAML front
# matter that holds ``name`` and ``description``.


SKILL_FILE = "SKILL.md"
MAX_SKILLS = 100
MAX_FILE_BYTES = 256 * 1024
"""Largest file of a skill, in bytes: what the model reads, it reads whole."""
MAX_DESCRIPTION_CHARS = 1_024
MAX_LISTED_FILES = 100

_LEFT_OUT = (".", "_")
"""Names in the skills folder that begin so are no skills."""


class SkillFileUnavailable(ToolFailure):
    """The skill has no such file, or it cannot be read. ``available``: the files there are."""

    name: str
    file: str
    available: list[str]
    reason: str


def _one_line(text: str) -> str:
    line = " ".join(printable(text).split())
    if not line:
        raise ValueError("must say something")
    return line


class FrontMatter(BaseModel, strict=True):
    """What a skill says of itself. Other keys are someone else's."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")
    description: Annotated[str, AfterValidator(_one_line)] = Field(max_length=MAX_DESCRIPTION_CHARS)


@dataclass(frozen=True, kw_only=True)
class Skill:
    """A skill that was found. ``root``: its folder, no symlink in it; ``file``: where its text is, below that."""

    name: str
    description: str
    root: Path
    file: str
    has_folder: bool

    def read(self, file: str) -> str:
        """Return the text of one of the skill's files, SKILL.md without its front matter. Blocking.

        Raises SkillFileUnavailable.
        """
        path = PurePosixPath(file)
        if path.is_absolute() or ".." in path.parts or any(part.startswith(".") for part in path.parts):
            raise self._unavailable(
                file, "name a file by its path relative to the skill's folder, without '..' and hidden names"
            )
        is_main = str(path) == SKILL_FILE
        if not is_main and not self.has_folder:
            raise self._unavailable(file, f"this skill has no other files than {SKILL_FILE}")
        try:
            text = _read_below(self.root, self.file if is_main else file)
        except (FileUnavailable, OutsideWorkspace, NotText, TooLarge) as failure:
            raise self._unavailable(file, _why(failure)) from failure
        return _without_front_matter(text) if is_main else text

    def other_files(self) -> list[str]:
        """Return the skill's other files, by path, at most MAX_LISTED_FILES; symlinks are not followed. Blocking."""
        if not self.has_folder:
            return []
        files: list[str] = []
        for directory, directories, names in os.walk(self.root):
            directories[:] = sorted(name for name in directories if not name.startswith("."))
            below = Path(directory).relative_to(self.root)
            files += [
                printable(path)
                for name in sorted(names)
                if not name.startswith(".") and (path := (below / name).as_posix()) != SKILL_FILE
            ]
            if len(files) >= MAX_LISTED_FILES:
                break
        return files[:MAX_LISTED_FILES]

    def _unavailable(self, file: str, reason: str) -> SkillFileUnavailable:
        available = [SKILL_FILE, *self.other_files()]
        message = f"{reason}. The files of {self.name!r} are: {', '.join(available)}"
        return SkillFileUnavailable(name=self.name, file=printable(file), available=available, reason=message)


def find_skills(folder: Path) -> list[Skill]:
    """Return the folder's skills by name. Blocking.

    Raises ConfigurationError as :func:`skills_toolkit` does.
    """
    if not folder.is_dir():
        raise ConfigurationError(f"the skills folder {str(folder)!r} does not exist, or is no folder; create it")
    root = Path(os.path.realpath(folder))
    skills: dict[str, Skill] = {}
    for entry in sorted(root.iterdir()):
        if entry.name.startswith(_LEFT_OUT) or not (entry.is_dir() or entry.suffix == ".md"):
            continue
        skill = _load(entry)
        if skill.name in skills:
            raise ConfigurationError(
                f"two skills are named {skill.name!r}: {_place(skills[skill.name])} and {_place(skill)}; rename one"
            )
        skills[skill.name] = skill
    if not skills:
        raise ConfigurationError(
            f"there are no skills in {str(folder)!r}: add a name.md, or a folder with a {SKILL_FILE}"
        )
    if len(skills) > MAX_SKILLS:
        raise ConfigurationError(
            f"{str(folder)!r} holds {len(skills)} skills, and each costs room in every prompt: keep at most {MAX_SKILLS}"
        )
    return [skills[name] for name in sorted(skills)]


def _load(entry: Path) -> Skill:
    if entry.is_symlink():
        raise ConfigurationError(
            f"{str(entry)!r} is a symlink: copy the skill into the skills folder, so that no one can change where it leads"
        )
    has_folder = entry.is_dir()
    root, file = (entry, SKILL_FILE) if has_folder else (entry.parent, entry.name)
    path = str(root / file)
    try:
        front = _front_matter(_read_below(root, file))
    except FileUnavailable as failure:
        if has_folder and failure.is_missing():
            raise ConfigurationError(
                f"{str(entry)!r} has no {SKILL_FILE}: add one, or begin the folder's name with '_' to leave it out"
            ) from None
        raise ConfigurationError(f"{path!r} cannot be read: {_why(failure)}") from failure
    except (OutsideWorkspace, NotText, TooLarge) as failure:
        raise ConfigurationError(f"{path!r} cannot be read: {_why(failure)}") from failure
    except ValueError as error:
        raise ConfigurationError(
            f"{path!r}: {error}. A skill begins with front matter: a line '---', then 'name: …' and 'description: …', then "
            "'---'. To leave a file out, begin its name with '_'"
        ) from None
    return Skill(name=front.name, description=front.description, root=root, file=file, has_folder=has_folder)


def _read_below(root: Path, file: str) -> str:
    """Read a file of a skill; the same root that was checked, even if someone has put a symlink in its place since."""
    place = Place.inside(root, file)
    if place.root != root:
        raise OutsideWorkspace(path=file, reason="the skill's folder was replaced by a symlink")
    text = read_text(place)
    if (size := len(text.encode())) > MAX_FILE_BYTES:
        raise TooLarge(path=file, size_bytes=size, limit_bytes=MAX_FILE_BYTES)
    return text


def _why(failure: ToolFailure) -> str:
    if isinstance(failure, OutsideWorkspace):
        return "the path leads out of the skill's folder"
    if isinstance(failure, TooLarge):
        return f"the file has {failure.fields['size_bytes']} bytes, and at most {MAX_FILE_BYTES} are read: split it"
    return str(failure.fields["reason"])


def _front_matter(text: str) -> FrontMatter:
    """Return the front matter; raises ValueError saying what is wrong."""
    head, _body = _split(text)
    if head is None:
        raise ValueError("there is no front matter")
    try:
        fields: Any = yaml.safe_load(head)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"its front matter is no YAML: {' '.join(str(error).split())[:200]}") from None
    try:
        return FrontMatter.model_validate(fields)
    except ValidationError as error:
        issues = "; ".join(f"{'.'.join(map(str, issue['loc']))}: {issue['msg']}" for issue in error.errors())
        raise ValueError(f"its front matter is wrong: {issues}") from None


def _without_front_matter(text: str) -> str:
    return _split(text)[1]


def _split(text: str) -> tuple[str | None, str]:
    """Return front matter (None: there is none) and body."""
    lines = text.removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}").splitlines(keepends=True)
    if lines and lines[0].rstrip() == "---":
        for number, line in enumerate(lines[1:], 1):
            if line.rstrip() == "---":
                return "".join(lines[1:number]), "".join(lines[number + 1 :]).lstrip("\r\n")
    return None, text


def _place(skill: Skill) -> str:
    return str(skill.root / skill.file)


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
    """A file of a skill. ``files``: what else there is to read, listed with SKILL.md only."""

    name: str
    file: str
    text: str
    files: list[str] = []


def skills_toolkit(folder: Path) -> Toolkit:
    """Return a toolkit with ``read_skill`` over the skills in this folder, which are looked for once, now.

    Texts are read again with each call; names and descriptions stay as they were, so that the prompt stays the same and
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
