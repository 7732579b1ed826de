"""Skills: what the model reads about them, what it can read of them, and what it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.engine.one_call import read_tool

from turngate.domain.errors import ConfigurationError
from turngate.toolkits.skills import MAX_FILE_BYTES, MAX_LISTED_FILES, MAX_SKILLS, skills_toolkit


def skill_text(name, description="Does something.", body="The body.\n"):
    return f"---\nname: {name}\ndescription: {description}\n---\n\n{body}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two skills: `refunds` is one file, `pdf` is a folder with two more."""
    skills = tmp_path / "skills"
    (skills / "pdf" / "forms").mkdir(parents=True)
    (skills / "refunds.md").write_text(skill_text("refunds", "How we refund.", "Ask first.\n"))
    (skills / "pdf" / "SKILL.md").write_text(skill_text("pdf", "Read and fill PDF files.", "See forms/fill.md\n"))
    (skills / "pdf" / "forms" / "fill.md").write_text("Fill it.\n")
    (skills / "pdf" / "extract.py").write_text("print('extract')\n")
    (skills / "pdf" / ".env").write_text("TOKEN=1\n")
    return skills


async def read(folder: Path, **tool_input) -> dict:
    """Read through the executor; return a failure's fields and kind."""
    return await read_tool(skills_toolkit(folder).find("read_skill"), **tool_input)


def test_the_description_lists_each_skill_in_a_stable_order(folder):
    """By name, in any file system's order; one line each; reading asks no one."""
    (folder / "a-last-file.md").write_text(skill_text("zebra", '"Two\\nlines, \\t and   spaces"'))
    tool = skills_toolkit(folder).find("read_skill")
    listed = tool.manifest.description.splitlines()[1:]
    assert listed == [
        "- pdf: Read and fill PDF files.",
        "- refunds: How we refund.",
        "- zebra: Two lines, and spaces",
    ]
    assert (tool.effect, tool.ask) == ("read", False)
    assert tool.manifest.digest == skills_toolkit(folder).find("read_skill").manifest.digest


def test_a_long_description_is_clipped_in_the_list(folder):
    """Every skill takes room in every prompt."""
    (folder / "wordy.md").write_text(skill_text("wordy", "x" * 1000))
    line = skills_toolkit(folder).find("read_skill").manifest.description.splitlines()[-1]
    assert line == f"- wordy: {'x' * 300}…"


async def test_a_skill_is_read_without_its_front_matter_and_names_its_files(folder):
    """Hidden files are not listed."""
    assert await read(folder, name="pdf") == {
        "name": "pdf",
        "file": "SKILL.md",
        "text": "See forms/fill.md\n",
        "files": ["extract.py", "forms/fill.md"],
    }
    assert (await read(folder, name="refunds"))["text"] == "Ask first.\n"
    assert (await read(folder, name="refunds"))["files"] == []


async def test_files_next_to_a_skill_are_read_whole(folder):
    """By relative path, at any depth."""
    assert (await read(folder, name="pdf", file="forms/fill.md"))["text"] == "Fill it.\n"
    assert (await read(folder, name="pdf", file="./extract.py"))["text"] == "print('extract')\n"


async def test_a_changed_text_is_read_again(folder):
    """Only names and descriptions are fixed at the start."""
    tool = skills_toolkit(folder).find("read_skill")
    (folder / "refunds.md").write_text(skill_text("other", body="Changed.\n"))
    assert (await read_tool(tool, name="refunds"))["text"] == "Changed.\n"


async def test_an_unknown_skill_gets_the_list_of_skills(folder):
    """The model can correct itself."""
    failed = await read(folder, name="__class__")
    assert (failed["kind"], failed["available"]) == ("unknown_skill", ["pdf", "refunds"])
    assert "pdf, refunds" in failed["message"]


@pytest.mark.parametrize(
    "file",
    [
        "../refunds.md",
        "forms/../../refunds.md",
        "..",
        "forms/..",
        ".env",
        "missing.md",
        "forms",
        "link.md",
        "linked/secret.md",
        "loop.md",
        "a\0b",
        "/etc/hostname",
    ],
)
async def test_no_file_outside_the_skill_is_read(folder, tmp_path, file):
    """Not by `..`, not by an absolute path, not by a symlink; each is a failure that lists the files."""
    (tmp_path / "secret.md").write_text("secret\n")
    (folder / "pdf" / "link.md").symlink_to(tmp_path / "secret.md")
    (folder / "pdf" / "linked").symlink_to(tmp_path)
    (folder / "pdf" / "loop.md").symlink_to("loop.md")
    failed = await read(folder, name="pdf", file=file)
    assert failed["kind"] == "skill_file_unavailable"
    assert "forms/fill.md" in failed["message"]
    assert "secret\n" not in json.dumps(failed)


async def test_an_absolute_path_is_refused_even_inside(folder):
    """The model need not know where the worker stores its skills."""
    failed = await read(folder, name="pdf", file=str(folder / "pdf" / "extract.py"))
    assert failed["kind"] == "skill_file_unavailable"


async def test_a_single_file_skill_has_no_other_files(folder):
    """Its neighbours in the folder are other skills."""
    (folder / "_notes.txt").write_text("x")
    for file in ("_notes.txt", "refunds.md", "pdf/SKILL.md"):
        assert (await read(folder, name="refunds", file=file))["kind"] == "skill_file_unavailable"


async def test_a_skill_folder_swapped_for_a_symlink_is_not_followed(folder, tmp_path):
    """Not even after the start."""
    tool = skills_toolkit(folder).find("read_skill")
    elsewhere = tmp_path / "elsewhere"
    (folder / "pdf").rename(tmp_path / "old")
    elsewhere.mkdir()
    (elsewhere / "SKILL.md").write_text(skill_text("pdf", body="stolen"))
    (folder / "pdf").symlink_to(elsewhere)
    assert (await read_tool(tool, name="pdf"))["kind"] == "skill_file_unavailable"


async def test_large_and_binary_files_are_declared_failures(folder):
    """The limit also applies to growth after the start."""
    tool = skills_toolkit(folder).find("read_skill")
    (folder / "pdf" / "big.md").write_text("x" * (MAX_FILE_BYTES + 1))
    (folder / "pdf" / "full.md").write_text("x" * MAX_FILE_BYTES)
    (folder / "pdf" / "huge.md").write_text("x" * 2_500_000)
    (folder / "pdf" / "logo.png").write_bytes(b"\x89PNG\0\xff")
    assert len((await read_tool(tool, name="pdf", file="full.md"))["text"]) == MAX_FILE_BYTES
    for file in ("big.md", "huge.md"):
        assert f"at most {MAX_FILE_BYTES}" in (await read_tool(tool, name="pdf", file=file))["message"]
    assert (await read_tool(tool, name="pdf", file="logo.png"))["kind"] == "skill_file_unavailable"


async def test_the_list_of_files_is_bounded(folder):
    """A skill with a whole data set in its folder stays readable."""
    for number in range(MAX_LISTED_FILES + 20):
        (folder / "pdf" / f"{number:04}.txt").write_text("")
    assert len((await read(folder, name="pdf"))["files"]) == MAX_LISTED_FILES


async def test_byte_order_mark_and_windows_line_ends_are_fine(folder):
    """Skills are written in all kinds of editors."""
    text = "\ufeff" + skill_text("dos", body="Line.\n")
    (folder / "dos.md").write_bytes(text.replace("\n", "\r\n").encode())
    assert (await read(folder, name="dos"))["text"] == "Line.\r\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("No front matter.\n", "no front matter"),
        ("---\nname: x\ndescription: y\n", "no front matter"),
        ("---\nname: [x\n---\n", "no YAML"),
        ("---\njust text\n---\n", "front matter is wrong"),
        ("---\nname: bad\n---\n", "description"),
        ("---\ndescription: y\n---\n", "name"),
        ("---\nname: 5\ndescription: y\n---\n", "name"),
        ("---\nname: bad name\ndescription: y\n---\n", "name"),
        ("---\nname: bad\ndescription: '  '\n---\n", "must say something"),
        (f"---\nname: bad\ndescription: {'x' * 1025}\n---\n", "1024"),
        ("---\nname: !!python/object/apply:os.getcwd []\ndescription: y\n---\n", "no YAML"),
        ("---\nname: 2024-99-99\ndescription: y\n---\n", "front matter"),
        ("x" * (MAX_FILE_BYTES + 1), "split it"),
    ],
)
def test_a_wrong_skill_refuses_the_start(folder, text, message):
    """The error names the file and the fix, before an agent first needs it."""
    (folder / "bad.md").write_text(text)
    with pytest.raises(ConfigurationError) as refused:
        skills_toolkit(folder)
    assert "bad.md" in refused.value.message
    assert message in refused.value.message


def test_two_skills_of_one_name_refuse_the_start(folder):
    """The error names both files."""
    (folder / "other.md").write_text(skill_text("pdf"))
    with pytest.raises(ConfigurationError, match=r"other\.md.*pdf/SKILL\.md|pdf/SKILL\.md.*other\.md"):
        skills_toolkit(folder)


def test_a_missing_or_empty_folder_refuses_the_start(tmp_path):
    """A typo in a path must not give an agent without skills."""
    with pytest.raises(ConfigurationError, match="does not exist"):
        skills_toolkit(tmp_path / "missing")
    with pytest.raises(ConfigurationError, match="no skills in"):
        skills_toolkit(tmp_path)


def test_a_folder_without_a_skill_file_refuses_the_start_unless_it_is_left_out(folder):
    """`skill.md` in lower case would otherwise be missed silently."""
    (folder / "typo").mkdir()
    (folder / "typo" / "skill.md").write_text(skill_text("typo"))
    with pytest.raises(ConfigurationError, match=r"has no SKILL\.md"):
        skills_toolkit(folder)
    (folder / "typo").rename(folder / "_typo")
    (folder / "_README.md").write_text("About these skills.")
    (folder / ".git").mkdir()
    (folder / "licence.txt").write_text("not a skill")
    assert len(skills_toolkit(folder).find("read_skill").manifest.description.splitlines()) == 3


@pytest.mark.parametrize("name", ["linked", "linked.md"])
def test_a_skill_that_is_a_symlink_refuses_the_start(folder, tmp_path, name):
    """Someone else could change the link's target."""
    target = tmp_path / "target.md"
    target.write_text(skill_text("linked"))
    if name == "linked":
        target = tmp_path / "target"
        target.mkdir()
        (target / "SKILL.md").write_text(skill_text("linked"))
    (folder / name).symlink_to(target)
    with pytest.raises(ConfigurationError, match="symlink"):
        skills_toolkit(folder)


def test_too_many_skills_refuse_the_start(folder):
    """The list is in every prompt."""
    for number in range(MAX_SKILLS - 2):
        (folder / f"s{number}.md").write_text(skill_text(f"s{number}"))
    assert skills_toolkit(folder)
    (folder / "one-more.md").write_text(skill_text("one-more"))
    with pytest.raises(ConfigurationError, match=f"at most {MAX_SKILLS}"):
        skills_toolkit(folder)
