"""The scripts that a command names are part of what a person approves: their text is shown, their digest is compared."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.machinery
import io
import json
import os
import shutil
import threading
import time
import zipfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from turngate import ToolContext
from turngate.toolkits import scripts
from turngate.toolkits.confinement import machine
from turngate.toolkits.confinement.machine import Confinement
from turngate.toolkits.shell import BashParams, CommandNotStarted, CommandResult, bash


@pytest.fixture
def work(tmp_path: Path) -> Path:
    root = tmp_path / "work"
    (root / "sub").mkdir(parents=True)
    for name in ("x.sh", "x.py", "sub/y.sh", "build.mk", "run", "notes.txt"):
        (root / name).write_text(f"text of {name}\n")
    (tmp_path / "outside.sh").write_text("not part of it\n")
    for name, text in (
        (".env", "A=1\nexport B='2 3'  # four\n"),
        ("path.env", "PATH=sub\n"),
        ("functions", "sh() { ls; }\n"),
    ):
        (root / name).write_text(text)
    (root / "pkg").mkdir()
    for name in ("__init__", "__main__", "tool"):
        (root / f"pkg/{name}.py").touch()
    (root / "machine-code").write_bytes(b"\x7fELF\0")
    packed = io.BytesIO(b"print('harmless')\n#")
    with zipfile.ZipFile(packed, "a") as archive:
        archive.writestr("__main__.py", "print('what runs')\n")
    (root / "packed.py").write_bytes(packed.getvalue())
    (root / "latin.sh").write_bytes(b"echo caf\xe9\n")
    for name in ("app.js", "mod.lua", "lib.rb", "Lib.pm"):
        (root / name).touch()
    (root / "link.sh").symlink_to("x.sh")
    (root / "leads-out.sh").symlink_to("../outside.sh")
    return root


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


NAMED = [
    ("sh x.sh", {"x.sh"}),
    ("bash -x ./x.sh a b", {"x.sh"}),
    ("sh sub/../x.sh", {"x.sh"}),
    ("sh link.sh", {"x.sh"}),
    ("s''h 'x.sh'", {"x.sh"}),
    ("./run --now", {"run"}),
    ("cd sub && sh y.sh", {"sub/y.sh"}),
    ("cd sub && ./y.sh", {"sub/y.sh"}),
    ("python3 x.py", {"x.py"}),
    ("python3 -W ignore x.py notes.txt", {"x.py", "notes.txt"}),
    ("make -f build.mk all", {"build.mk"}),
    ("make --file=build.mk", {"build.mk"}),
    ("source x.sh; . ./sub/y.sh", {"x.sh", "sub/y.sh"}),
    ("timeout 5 env A=1 sh x.sh | cat", {"x.sh"}),
    ("xargs sh x.sh", {"x.sh"}),
    ("bash -c 'sh x.sh'", {"x.sh"}),
    ("sh < x.sh", {"x.sh"}),
    ("for f in a b; do sh x.sh $f; done", {"x.sh"}),
    ("if true; then python3 x.py; fi; sh 'x.sh", {"x.py", "x.sh"}),
    ("python3 -m x", {"x.py"}),
    ("python3 -Bm x arg", {"x.py"}),
    ("python3 -mx", {"x.py"}),
    ("python3 -m pkg.tool", {"pkg/__init__.py", "pkg/tool.py"}),
    ("python3 -m pkg", {"pkg/__init__.py", "pkg/__main__.py"}),
    ("python3 -m cProfile x.py", {"x.py"}),
    ("python3 -m cProfile -m x", {"x.py"}),
    ("python3 -X dev -W d -m x", {"x.py"}),
    ("python3 --check-hash-based-pycs always -m x", {"x.py"}),
    ("node -r ./app -e 1", {"app.js"}),
    ("node app", {"app.js"}),
    ("lua -l mod -e 1", {"mod.lua"}),
    ("ruby -r./lib -e 1", {"lib.rb"}),
    ("perl -I. -MLib -e1", {"Lib.pm"}),
]
NOT_NAMED = [
    "ls x.sh",
    "cat x.sh notes.txt",
    "git add x.sh",
    "sh leads-out.sh",
    "sh ../outside.sh",
    "sh -c 'ls'",
    "sh missing.sh",
    "/bin/ls",
    "python3 -m pytest",
]


def test_scripts_that_a_command_names_are_found(work: Path) -> None:
    """Shells, interpreters, make and programs of the workspace name scripts, wherever the command enters and however quoted.

    What a command only reads, or what lies outside the workspace, is no script of it.
    """
    assert [row for row in NAMED if set(scripts.find(row[0], work).stamps) != row[1]] == []
    assert [command for command in NOT_NAMED if scripts.find(command, work).files] == []


PLAIN = [
    "ls -C x.sh",
    "cd sub && ls",
    "cd -- sub && ls",
    "sh x.sh out && ./run",
    "bash -ex ./x.sh",
    "python3 -u x.py notes.txt",
    "python3 -m black x.py",
    "bash -c ./x.sh",
    "cd sub && sh y.sh",
    "cd ./sub/ && ./y.sh",
    "cd {work}/sub && sh y.sh",
    "make -f build.mk all",
    "make test",
    "/usr/bin/env python3 x.py",
    "git -C sub log && sh x.sh",
    "timeout 5 sh x.sh",
    # What is sourced is shown as a script is.
    "source x.sh",
    ". ./x.sh && pip list",
    "bash -c '. x.sh && python3 -m pytest'",
    "set -a; . .env; set +a; sh x.sh",
    "[ -f .env ] && source .env; ./run",
]
UNCERTAIN = [
    # The place is not plain, or two files have the name there.
    "cd sub && sh x.sh",
    "cd -- sub && sh x.sh",
    "cd -P sub && sh x.sh",
    "cd sub/../sub && sh x.sh",
    "builtin cd -- sub; sh x.sh",
    "command cd -L sub; sh x.sh",
    "pushd sub && sh x.sh",
    "env -C sub sh x.sh",
    "timeout 9 env --chdir=sub sh x.sh",
    "bash -c 'cd -- sub; sh x.sh'",
    "cd sub && cd - && sh x.sh",
    "for i in 1 2; do cd sub; done; ./run",
    "trap 'cd sub' DEBUG; :; ./run",
    "cd /tmp && sh x.sh",
    "cd missing; sh x.sh",
    "find sub -execdir sh x.sh ';'",
    "make -C sub -f build.mk",
    "CDPATH=sub; cd d; sh x.sh",
    # What is sourced may change what the rest of the line runs.
    "source x.sh; ./run",
    ". functions; sh x.sh",
    ". path.env; sh x.sh",
    "for i in 1 2; do sh x.sh; . functions; done",
    ". x.sh; . .env",
    # A compiled file may take the place of a module.
    "python3 -m x",
    "cd sub && python3 -um pkg.tool",
    # What runs can't be shown.
    "./machine-code",
    "python3 packed.py",
    "sh latin.sh",
    # An interpreter finds a file by less than its name, or where no word says.
    "python3 -X dev -m x",
    "python3 -m cProfile -m x",
    "python3 -m $module x.py",
    "node app",
    "node -r ./app -e 1",
    "node -r anything -e 1",
    "perl -Isub -MAny -e1",
    "ruby -rlib -I. -e 1",
    # The file is not plain.
    ". missing",
    ". sub",
    "source $x",
    "source <(cat x.sh)",
    "source -p sub x.sh",
    "PATH=sub:$PATH . x.sh",
    "BASH_ENV=sub/x.sh bash x.sh",
    "sh /proc/self/cwd/x.sh",
    "exec 3<x.sh; sh /dev/fd/3",
    "cat x.sh | sh",
    "sh $x",
    "cp x.sh /tmp/y; sh /tmp/y",
    "exec /tmp/y --now",
    "sh leads-out.sh",
    "sh missing.sh",
    "awk -fx.sh",
    "make -fbuild.mk run",
    "bash --rcfile x.sh -i",
    "ruby -C sub x.sh",
    "node -r ./x.sh x.py",
    "if ((; sh x.sh",
]


def kind_of(command: str, work: Path) -> tuple[str, str]:
    """Return the kind of a command's preview, and its first line."""
    assert bash.preview is not None
    preview = bash.preview(BashParams(command=command.format(work=work)), work)
    assert preview is not None
    return preview.kind, preview.text.split("\n")[0]


def test_i6_a_command_that_is_not_plain_is_shown_as_such(work: Path) -> None:
    """Where another file may run than the one that is shown, the request begins with a warning.

    A command that runs what it plainly names, or nothing of the workspace, is shown without.
    """
    (work / "sub/x.sh").write_text("echo the other\n")
    assert [each for each in PLAIN if kind_of(each, work)[0] == "warned"] == []
    assert [each for each in UNCERTAIN if kind_of(each, work) != ("warned", scripts.UNCERTAIN)] == []


def test_i6_each_file_that_may_be_meant_is_compared(work: Path) -> None:
    """Of a name that is not plain, the file in each directory that the command may enter counts."""
    (work / "sub/x.sh").write_text("echo the other\n")
    for command, expected in (
        *((line, {"x.sh", "sub/x.sh"}) for line in UNCERTAIN[:11]),
        ("make -fbuild.mk", {"build.mk"}),
        ("awk -fx.sh", {"x.sh"}),
        ("sh /proc/self/cwd/x.sh", {"x.sh"}),
    ):
        assert scripts.find(command, work).stamps.keys() >= expected, command


@pytest.mark.parametrize("suffix", importlib.machinery.all_suffixes())
def test_i6_whatever_python_imports_as_a_module_is_found(suffix: str, work: Path) -> None:
    """A package of the workspace in place of Python's, a file in place of a package, compiled or not: compared and uncertain."""
    for stem in ("json", "json/__init__", "json/tool", "json/tool/__init__", "json/tool/__main__"):
        file = work / f"{stem}{suffix}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        named = scripts.find("python3 -m json.tool notes.txt", work)
        assert (f"{stem}{suffix}" in named.stamps, named.certain) == (True, False)
        file.unlink()
        if file.parent != work:
            shutil.rmtree(work / "json")


@pytest.mark.parametrize(
    "command",
    [
        f"python3 -m {'.'.join('a' * 20_000)}",
        *(
            pytest.param(command, marks=pytest.mark.exhaustive)
            for command in (
                "".join(f"cd d{at}; cd ..; " for at in range(20)) + "sh " + " ".join(f"w{at}" for at in range(8_000)),
                "; ".join([f"python3 -m {'.'.join('abcdefghij')}"] * 2_000),
                "python3 -m pdb " + " ".join(f"w{at}" for at in range(10_000)),
                "sh -x " + "x.sh " * 10_000,
                ". ./.env; " * 5_000,
                "sh -x " + " ".join(f"{'loop/' * 8}x{at}.sh" for at in range(1_000)),
            )
        ),
    ],
    ids=lambda command: command[:12],
)
def test_i14_looking_for_scripts_is_bounded(command: str, work: Path) -> None:
    """No command that the parser takes keeps a thread looking; beyond the bound, what runs isn't known."""
    (work / "loop").symlink_to("./" * 2_000)
    (work / ".env").write_text("A=1\n" * 10_000)
    started = time.thread_time()
    assert not scripts.find(command, work).certain
    assert time.thread_time() - started < 4 * scripts.MAX_LOOK_SECONDS


def test_i6_more_scripts_than_are_compared_make_a_warning(work: Path) -> None:
    """A command that names more scripts than are compared is shown with the warning."""
    for at in range(scripts.MAX_SCRIPTS + 1):
        (work / f"s{at}.sh").write_text("echo\n")
    lines = [f"sh s{at}.sh" for at in range(scripts.MAX_SCRIPTS + 1)]
    assert not scripts.find("; ".join(lines), work).certain
    assert scripts.find("; ".join(lines[1:]), work).certain


def context(workspace: Path | None, precondition: str | None = None) -> ToolContext:
    return ToolContext(
        run_id="r",
        tool_call_id="c",
        idempotency_key="k",
        workspace=workspace,
        deadline=datetime(2030, 1, 1, tzinfo=UTC),
        precondition=precondition,
    )


def depends_on(command: str, workspace: Path | None) -> object:
    assert bash.preview is not None
    preview = bash.preview(BashParams(command=command), workspace)
    assert preview is not None
    return preview.depends_on


async def run(command: str, workspace: Path, approved: object) -> CommandResult:
    """Run a command for which a person approved the scripts as they were."""
    params = BashParams(command=command, timeout_seconds=60)
    return await bash.handler.function(params, context(workspace, json.dumps(approved)))


def test_i6_a_script_is_part_of_what_was_approved(work: Path) -> None:
    """What a command depends on changes with the script's text, with its arrival, and with nothing else."""
    before = depends_on("sh x.sh", work)
    assert before == {"scripts": {"x.sh": digest("text of x.sh\n")}}
    (work / "notes.txt").write_text("changed")
    assert depends_on("sh x.sh", work) == before
    (work / "x.sh").write_text("rm -rf /\n")
    assert depends_on("sh x.sh", work) != before
    assert depends_on("ls", work) is None
    assert depends_on("sh x.sh", None) is None


def test_the_text_of_a_script_is_shown(work: Path) -> None:
    """The person who is asked sees all of the script below the command; without scripts, the command alone."""
    assert bash.preview is not None
    preview = bash.preview(BashParams(command="sh x.sh"), work)
    assert preview is not None
    assert preview.text == "bash -c\n    sh x.sh\n\n--- x.sh\n    text of x.sh\n"
    plain = bash.preview(BashParams(command="ls"), work)
    assert plain is not None
    assert plain.kind == "command"
    (work / "x.sh").write_text("a\n" * 100_000 + "the last line")
    long = bash.preview(BashParams(command="sh x.sh"), work)
    assert long is not None
    assert long.text.endswith("    a\n    the last line")
    (work / "x.sh").write_bytes(b"echo payload # \xff\0\n")
    odd = bash.preview(BashParams(command="sh x.sh"), work)
    assert odd is not None
    assert odd.text.endswith("--- x.sh\n    echo payload # \N{REPLACEMENT CHARACTER}\N{SYMBOL FOR NULL}\n")


def test_i6_no_name_and_no_text_looks_like_the_beginning_of_a_script(work: Path) -> None:
    """What the preview says of scripts can't be imitated by their names, their text or the command."""
    (work / "a\n\n--- z.sh\necho harmless").write_text("echo evil\n\n--- c.sh\r--- d.sh\u2028--- e.sh\n")
    assert bash.preview is not None
    preview = bash.preview(BashParams(command="sh $'a\\n\\n--- z.sh\\necho harmless' '\n--- y.sh\n'"), work)
    assert preview is not None
    assert [line for line in preview.text.splitlines() if line.startswith("---")] == [
        "--- 'a\\n\\n--- z.sh\\necho harmless'"
    ]


def test_i6_a_program_of_the_workspace_on_the_path_is_shown(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bare name is looked up on the command's PATH, relative parts of it too; links to the system's programs are none."""
    (work / "bin").mkdir()
    (work / "bin/lint").write_text("#!/bin/sh\necho\n")
    (work / "bin/lint").chmod(0o755)
    (work / "bin/bash").symlink_to("/bin/bash")
    for place in (f"{work}/bin", "bin"):
        monkeypatch.setenv("PATH", f"{place}:{os.defpath}")
        assert scripts.find("timeout 5 lint . | bash -c ls; ls", work).stamps == {
            "bin/lint": digest("#!/bin/sh\necho\n")
        }


@pytest.fixture(params=["bubblewrap", "landlock"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(machine, "_chosen", [Confinement(backend=request.param)])
    return request.param


@pytest.fixture
def project(work: Path) -> Path:
    """A workspace whose scripts say that they are the approved ones; ``evil`` says that it isn't."""
    for name in ("x.sh", "sub/y.sh", "run"):
        (work / name).write_text("#!/bin/sh\necho approved\n")
    (work / "x.py").write_text("print('approved')\n")
    (work / "evil").write_text("print('evil') if 0 else 0\necho evil\n")
    (work / "run").chmod(0o755)
    return work


def _renamed(work: Path) -> None:
    (work / "evil").replace(work / "sub/y.sh")


def _written(work: Path) -> None:
    (work / "sub/y.sh").write_text("echo evil\n")


def _linked(work: Path) -> None:
    (work / "sub/y.sh").unlink()
    (work / "sub/y.sh").symlink_to("../evil")


def _hard_linked(work: Path) -> None:
    (work / "sub/y.sh").unlink()
    (work / "sub/y.sh").hardlink_to(work / "evil")


def _led_out(work: Path) -> None:
    (work / "sub/y.sh").unlink()
    (work / "sub/y.sh").symlink_to("../../outside.sh")


def _parent_renamed(work: Path) -> None:
    (work / "sub").rename(work / "old")
    (work / "sub").mkdir()
    _renamed(work)


def _removed(work: Path) -> None:
    (work / "sub/y.sh").unlink()


SWAPS = [_renamed, _written, _linked, _hard_linked, _led_out, _parent_renamed, _removed]


@pytest.mark.parametrize("swap", SWAPS)
async def test_i6_a_script_swapped_between_check_and_start_does_not_run(
    swap: Callable[[Path], None], backend: str, project: Path
) -> None:
    """Whatever took its place, nothing of the command runs, and the failure names the script."""
    command = "touch ran; sh sub/y.sh"
    approved = depends_on(command, project)
    swap(project)
    with pytest.raises(CommandNotStarted) as refused:
        await run(command, project, approved)
    assert "sub/y.sh" in refused.value.fields["reason"]
    assert not (project / "ran").exists()


async def test_i6_a_script_that_came_after_the_approval_does_not_run(backend: str, project: Path) -> None:
    """A script that was not there when the command was approved is a change like any."""
    approved = depends_on("sh new.sh", project)
    (project / "new.sh").write_text("echo evil\n")
    with pytest.raises(CommandNotStarted):
        await run("sh new.sh", project, approved)


@pytest.mark.parametrize("text", ["python3 x.py", "cd sub && bash ./y.sh", "sh x.sh; ./run; sh sub/y.sh"])
async def test_approved_scripts_run(text: str, backend: str, project: Path) -> None:
    """What was approved runs, with its permissions, wherever it lies; also without any approval."""
    result = await run(text, project, depends_on(text, project))
    assert set(result.output.split()) == {"approved"}, result.output
    assert (await bash.handler.function(BashParams(command=text), context(project))).output == result.output


async def test_i6_a_mounted_script_can_not_be_changed_from_within(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under bubblewrap, what an earlier part of the command does to a script changes nothing of what runs."""
    monkeypatch.setattr(machine, "_chosen", [Confinement(backend="bubblewrap")])
    swaps = "echo echo evil > x.sh; mv evil x.sh; rm x.sh; ln -sf evil x.sh; cp evil x.sh; chmod 777 x.sh"
    command = f"({swaps}) 2>/dev/null; sh x.sh"
    result = await run(command, project, depends_on(command, project))
    assert result.output == "approved\n"
    assert (project / "x.sh").read_text() == "#!/bin/sh\necho approved\n"


async def test_i6_a_mounted_script_is_not_the_file_that_others_write(
    project: Path, monkeypatch: pytest.MonkeyPatch, until: Callable[..., Awaitable[object]]
) -> None:
    """Under bubblewrap, what writes to the script while the command runs, by another name too, writes to another file."""
    monkeypatch.setattr(machine, "_chosen", [Confinement(backend="bubblewrap")])
    (project / "also").hardlink_to(project / "x.sh")
    command = "touch started; until [ -e go ]; do sleep 0.01; done; sh x.sh; sh sub/y.sh"
    approved = depends_on(command, project)
    running = asyncio.create_task(run(command, project, approved))
    await until((project / "started").exists)
    for name in ("also", "sub/y.sh"):
        (project / name).write_text("echo evil\n")
    (project / "go").touch()
    assert (await running).output == "approved\napproved\n"


async def test_i6_a_script_swapped_all_the_time_runs_as_approved_or_not_at_all(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under bubblewrap, a process that writes the script over and over never gets its own text to run."""
    monkeypatch.setattr(machine, "_chosen", [Confinement(backend="bubblewrap")])
    approved = depends_on("sh x.sh", project)
    good, ended = (project / "x.sh").read_bytes(), threading.Event()

    def swap() -> None:
        file = os.open(project / "x.sh", os.O_RDWR)
        while not ended.wait(0.0005):
            for text in (b"#!/bin/sh\necho evil    \n", good):
                os.pwrite(file, text, 0)
        os.close(file)

    swapping = threading.Thread(target=swap)
    swapping.start()
    outputs = []
    try:
        for _attempt in range(12):
            with suppress(CommandNotStarted):
                outputs.append((await run("sh x.sh", project, approved)).output)
    finally:
        ended.set()
        swapping.join()
    assert set(outputs) <= {"approved\n"}


async def test_a_command_writes_the_files_that_its_script_is_given(backend: str, project: Path) -> None:
    """Where it is certain which file runs, the others that a command names can be written."""
    (project / "x.py").write_text("import sys; open(sys.argv[1], 'w').write('made')\n")
    command = "python3 x.py notes.txt"
    assert (await run(command, project, depends_on(command, project))).exit_code == 0
    assert (project / "notes.txt").read_text() == "made"


@pytest.mark.parametrize(
    ("command", "runs"),
    [
        ("python3 -m black x.py", set()),
        ("python3 -W x.py x.sh", {"x.py", "x.sh"}),
        ("sh -m x.sh", {"x.sh"}),
        ("node inspect x.py", {"x.py"}),
        ("node x.py x.sh", {"x.py"}),
        ("sh x.sh x.py; python3 x.py", {"x.sh", "x.py"}),
        ("make -f build.mk", {"build.mk"}),
    ],
)
def test_what_may_run_is_copied(command: str, runs: set[str], work: Path, tmp_path: Path) -> None:
    """Of the files that a command names, each that may be the one that runs is copied, with what was in it."""
    copies = tmp_path / "copies"
    copies.mkdir()
    named = scripts.find(command, work, copies)
    copied = {script.place.relative: script.copy.read_text() for script in named.files if script.copy is not None}
    assert copied == {name: f"text of {name}\n" for name in runs}
