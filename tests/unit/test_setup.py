"""`make setup` and `make setup-dev`: what they install, when again, and when they start over. The Python is a stand-in."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Makes environments whose uv and pip write down what they are asked for. MISHAP: how the next installation of the lock ends,
# or that there is no uv.
PYTHON = """#!/bin/bash
[[ "$2" == "import pip" ]] && exit "${LACKS_PIP:-1}"
[[ "$1" == -c ]] && exit 0
if [[ "$2" == pip ]]; then
    [[ "$5" != config ]] || { echo "$INDEX"; exit; }
    echo "its pip ${*:5:4}" >> "$LOG"
    exit
fi
env="${@: -1}"
[[ "$env" == /* ]] || env="$PWD/$env"
echo venv >> "$LOG"
rm -rf "$env"; mkdir -p "$env/bin" "$env/lib/python3.11/site-packages"
echo "echo pip from $env" > "$env/bin/pip"
cat > "$env/bin/python" <<'END'
#!/bin/bash
[[ "$1" == -c ]] && { echo "$0"; exit; }  # the wheel of pip that this Python brings
here="$(cd "$(dirname "$0")/.." && pwd)"
[[ "$2" == compileall ]] && exit
[[ "$3" == --version ]] && { echo "pip from $here"; exit; }
[[ "$1" == */pip ]] && shift || shift 2
[[ "$3" == config ]] && { echo "$INDEX"; exit; }
exec "$here/bin/installer" pip "${@:3}"
END
mkdir -p "$env/.uv/bin"
cat > "$env/.uv/bin/uv" <<'END'
#!/bin/bash
[[ -z "$UV_DEFAULT_INDEX" ]] || echo "index $UV_DEFAULT_INDEX" >> "$LOG"
exec "$(dirname "$0")/../../bin/installer" uv install "${@:6}"
END
cat > "$env/bin/installer" <<'END'
#!/bin/bash
here="$(cd "$(dirname "$0")/.." && pwd)"
called=()
for argument; do
    [[ "${called[-1]:-}" != -r ]] || argument="$(grep -o '^[a-z]*==1' "$argument" | xargs)"
    called+=("$argument")
done
[[ "${called[-1]}" != uv==1 || "$MISHAP" != "no uv" ]] || exit 1
echo "${called[*]}" >> "$LOG"
[[ "${called[-1]}" == uv==1 ]] || case "$MISHAP" in
    download) exit 1 ;;
    install) touch "$here/lib/python3.11/site-packages/half"; exit 1 ;;
    killed) touch "$here/lib/python3.11/site-packages/half"; kill -9 $PPID; exit 1 ;;
esac
mktemp -q "$here/lib/python3.11/site-packages/package.XXXXXX" >/dev/null
END
chmod +x "$env"/bin/* "$env"/.uv/bin/*
"""
NEW = "venv"
RUN_LOCK = ("aiosmtplib", "alembic", "anyio")
DEV_LOCK = ("aiosmtpd", *RUN_LOCK, "pip", "pytest", "uv")
ENTRY = "{0}==1 \\\n    --hash=sha256:{0}\n    # via {0}\n"
UV = "pip install --upgrade --target .venv/.uv --no-deps --require-hashes -r uv==1"
PIP = "pip install --no-deps --require-hashes -r pip==1"


def all_of(lock: tuple[str, ...], tool: str = "uv") -> str:
    """Return the call that installs the lock, and pip."""
    return f"{tool} install --no-deps --require-hashes -r {' '.join(f'{name}==1' for name in lock)} -r pip==1"


PROJECT = "uv install --no-deps --build-constraint requirements-dev.lock -e ."
RUN = [UV, all_of(RUN_LOCK), PROJECT]
DEV = [UV, all_of(DEV_LOCK), PROJECT]


@dataclass
class Checkout:
    """A checkout with no more than set-up reads."""

    path: Path
    log: Path

    def make(self, target: str, mishap: str = "", index: str = "", *, has_pip: bool = False) -> list[str]:
        """Return what was done for the target, in order.

        ``index``: the one in pip's configuration. ``has_pip``: pip is installed beside the Python that makes the environment.
        """
        self.log.write_text("")
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHON": str(self.log.parent / "python"),
            "LOG": str(self.log),
            "MISHAP": mishap,
            "INDEX": index,
            "LACKS_PIP": "0" if has_pip else "1",
        }
        done = subprocess.run(["make", "-s", target], cwd=self.path, env=environment, capture_output=True, check=False)
        assert (done.returncode == 0) == (mishap in {"", "no uv"}), done.stderr
        for file in self.path.rglob("*"):  # so that a file that is touched next is newer
            os.utime(file, (file.stat().st_atime - 10, file.stat().st_mtime - 10))
        return self.log.read_text().splitlines()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    path = tmp_path / "checkout"
    (path / "scripts").mkdir(parents=True)
    for name in ("Makefile", "scripts/setup"):
        shutil.copy2(ROOT / name, path / name)
    (path / "requirements.lock").write_text("".join(map(ENTRY.format, RUN_LOCK)))
    (path / "requirements-dev.lock").write_text("".join(map(ENTRY.format, DEV_LOCK)))
    (path / "pyproject.toml").touch()
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    return Checkout(path, tmp_path / "log")


def test_running_needs_one_lock_and_is_set_up_once(checkout: Checkout) -> None:
    """The project comes after its packages, and pip fetches nothing for it that no hash is known of."""
    assert checkout.make("setup") == [NEW, *RUN]
    assert checkout.make("setup") == []


def test_testing_comes_on_top_and_running_stays(checkout: Checkout) -> None:
    """One environment, in either order; nothing is removed and nothing is done twice."""
    checkout.make("setup")
    assert checkout.make("setup-dev") == DEV
    assert checkout.make("setup") == []
    assert checkout.make("setup-dev") == []


def test_testing_first_is_enough_for_running(checkout: Checkout) -> None:
    """The demo after the tests installs nothing."""
    assert checkout.make("setup-dev") == [NEW, *DEV]
    assert checkout.make("setup") == []


@pytest.mark.parametrize(
    ("changed", "run", "dev"),
    [
        ("requirements.lock", RUN, DEV),
        ("requirements-dev.lock", [], DEV),
        ("pyproject.toml", RUN, DEV),
        ("scripts/setup", RUN, DEV),
        ("README.md", [], []),
    ],
)
def test_a_changed_file_is_installed_where_it_counts(
    checkout: Checkout, changed: str, run: list[str], dev: list[str]
) -> None:
    """A demo does not wait for what only tests need."""
    checkout.make("setup-dev")
    (checkout.path / changed).touch()
    assert checkout.make("setup") == run
    assert checkout.make("setup-dev") == dev


@pytest.mark.parametrize("target", ["setup", "setup-dev"])
@pytest.mark.parametrize("mishap", ["install", "killed"])
def test_a_half_installed_environment_is_made_again(checkout: Checkout, target: str, mishap: str) -> None:
    """A half-installed package would be taken for an installed one; the old stamps count no longer."""
    checkout.make("setup")
    (checkout.path / "requirements.lock").touch()
    checkout.make(target, mishap)
    assert checkout.make("setup") == [NEW, *RUN]


def test_a_failed_download_leaves_the_environment(checkout: Checkout) -> None:
    """Nothing was changed, so nothing is thrown away; what is missing is installed the next time."""
    checkout.make("setup")
    checkout.make("setup-dev", "download")
    assert checkout.make("setup") == RUN
    assert checkout.make("setup-dev") == DEV


@pytest.mark.parametrize("leave", [shutil.move, shutil.copytree])
def test_a_moved_checkout_gets_an_environment_of_its_own(checkout: Checkout, leave) -> None:
    """The scripts of the old one name a Python that is gone, or that belongs to another checkout."""
    checkout.make("setup-dev")
    leave(checkout.path, checkout.path.with_name("other"))
    other = Checkout(checkout.path.with_name("other"), checkout.log)
    assert other.make("setup") == [NEW, *RUN]


def test_where_there_is_no_uv_pip_installs(checkout: Checkout) -> None:
    """As for a platform that uv has no files for."""
    lock = all_of(RUN_LOCK, "pip")
    assert checkout.make("setup", "no uv") == [NEW, PIP, lock, PROJECT.replace("uv", "pip", 1)]


@pytest.mark.parametrize("has_pip", [False, True])
def test_an_index_of_ones_own_is_passed_on(checkout: Checkout, has_pip: bool) -> None:
    """Uv does not read pip's configuration. A pip that is installed fetches uv, and installs nothing else."""
    done = checkout.make("setup", index="https://index.example/simple", has_pip=has_pip)
    fetched = "its pip install --upgrade --target .venv/.uv" if has_pip else UV
    assert [each for each in done if not each.startswith("index ")] == [NEW, fetched, *RUN[1:]]
    assert "index https://index.example/simple" in done
