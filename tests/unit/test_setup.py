"""scripts/setup on machines that lack something: one line that says what to do."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

SETUP = Path(__file__).resolve().parents[2] / "scripts" / "setup"
TOOLS = ("cat", "cmp", "cp", "dirname", "env", "grep", "id", "mkdir", "readlink", "rm", "sh", "tail")
TOO_OLD = "#!/bin/sh\nexit 1\n"
TOO_NEW = """#!/bin/sh
case "$*" in
    *"(3, 10)"*) exit 1 ;;
    *python_version*) echo 3.14.3 ;;
    "-m venv .python/uv") mkdir -p .python/uv/bin && cp "{folder}/bin/pip" .python/uv/bin/python ;;
esac
"""
UV = """#!/bin/sh
echo "$UV_PYTHON_INSTALL_DIR: $*" >>"{folder}/calls"
case "$2" in find) echo "{folder}/bin/python-of-uv" ;; esac
"""
WITHOUT_VENV = """#!/bin/sh
case "$*" in
    *ensurepip*) test -e "{folder}/installed" ;;
    "-m venv"*) echo "no room on the disk" >&2; exit 1 ;;
    *) exec "{python}" "$@" ;;
esac
"""


@pytest.fixture
def machine(tmp_path):
    """A folder with the script, and a PATH in which only what a test puts there can be found."""
    project = tmp_path / "a project"
    (project / "scripts").mkdir(parents=True)
    shutil.copy(SETUP, project / "scripts")
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))

    def put(name, script):
        file = tmp_path / "bin" / name
        file.unlink(missing_ok=True)
        file.write_text(script.format(folder=tmp_path, python=sys.executable))
        file.chmod(0o755)

    def run(**environment):
        return subprocess.run(
            [shutil.which("sh"), str(project / "scripts" / "setup"), "demo"],
            env={"PATH": str(tmp_path / "bin"), **environment},
            capture_output=True,
            text=True,
            timeout=30,
        )

    def start():
        command = [shutil.which("sh"), str(project / "scripts" / "setup"), "demo"]
        return subprocess.Popen(command, env={"PATH": str(tmp_path / "bin")}, stderr=subprocess.PIPE, text=True)

    return SimpleNamespace(put=put, run=run, start=start, project=project)


def test_without_a_python_that_fits(machine):
    machine.put("python3", TOO_OLD)
    done = machine.run()
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: this project needs Python 3.10 to 3.13; install one")


def test_a_named_python_that_is_not_there_or_too_old(machine):
    machine.put("python2", TOO_OLD)
    assert machine.run(PYTHON="python9").stderr == "error: PYTHON=python9: there is no such program\n"
    assert machine.run(PYTHON="python2").stderr == "error: PYTHON=python2: this project needs Python 3.10 to 3.13\n"


def test_another_python_is_found_when_python3_is_too_old(machine):
    machine.put("python3", TOO_OLD)
    machine.put("python3.12", WITHOUT_VENV.replace("test -e", "true"))
    done = machine.run()
    assert "setup: making .venv with Python 3." in done.stdout
    assert done.stderr == "error: python3.12 could not make .venv: no room on the disk\n"


@pytest.mark.parametrize("place", ["uv", "pip"])
def test_where_all_pythons_are_too_new_uv_fetches_one(machine, tmp_path, place):
    """As on Ubuntu 26.04. uv is that of the machine, or comes with pip."""
    machine.put("python3", TOO_NEW)
    machine.put("python-of-uv", WITHOUT_VENV.replace("test -e", "true"))
    machine.put("pip" if place == "pip" else "unused", '#!/bin/sh\ncp "{folder}/bin/later" .python/uv/bin/uv\n')
    machine.put("later" if place == "pip" else "uv", UV)
    done = machine.run()
    assert done.stderr.startswith("setup: python3 is 3.14.3; fetching Python 3.13, which fits, into .python\n")
    assert done.stderr.endswith("error: " + f"{tmp_path}/bin/python-of-uv could not make .venv: no room on the disk\n")
    folder = machine.project / ".python"
    calls = (tmp_path / "calls").read_text()
    assert calls == f"{folder}: python install 3.13\n{folder}: python find --no-project 3.13\n"
    assert "setup: making .venv with Python 3." in done.stdout
    assert not (machine.project / ".setup.log").exists()


def test_what_uv_said_is_kept_when_it_cannot_fetch_one(machine):
    machine.put("python3", TOO_NEW)
    machine.put("uv", "#!/bin/sh\necho no network\nexit 2\n")
    done = machine.run()
    assert done.returncode == 1
    assert done.stderr.endswith(
        "\nerror: this project needs Python 3.10 to 3.13, and uv could not fetch one (see .setup.log); "
        "install one, or name it: PYTHON=/path/to/python3.12\n"
    )
    assert (machine.project / ".setup.log").read_text() == "no network\n"


def test_the_missing_module_is_installed_by_root(machine, tmp_path):
    machine.put("python3", WITHOUT_VENV)
    machine.put("id", "#!/bin/sh\necho 0\n")
    machine.put(
        "apt-get", '#!/bin/sh\necho "$@" >>"{folder}/calls"\ncase "$1" in install) >"{folder}/installed" ;; esac\n'
    )
    done = machine.run()
    package = f"python3.{sys.version_info.minor}-venv"
    assert (tmp_path / "calls").read_text() == f"update\ninstall -y --no-install-recommends {package}\n"
    assert done.stdout.startswith(f"setup: installing {package} with apt-get\nsetup: making .venv with Python")


def test_who_is_not_root_is_told_what_to_install(machine):
    machine.put("python3", WITHOUT_VENV)
    machine.put("id", "#!/bin/sh\necho 1000\n")
    machine.put("apt-get", "#!/bin/sh\nexit 1\n")
    done = machine.run()
    package = f"python3.{sys.version_info.minor}-venv"
    assert done.stderr == f"error: python3 lacks the module venv; run: sudo apt-get install {package}\n"


def test_what_apt_get_said_is_kept_when_it_fails(machine, tmp_path):
    machine.put("python3", WITHOUT_VENV)
    machine.put("id", "#!/bin/sh\necho 0\n")
    machine.put("apt-get", "#!/bin/sh\necho no network\nexit 100\n")
    done = machine.run()
    assert done.stderr.startswith("error: apt-get could not install python3.")
    assert done.stderr.count("\n") == 1
    assert (tmp_path / "a project" / ".setup.log").read_text() == "no network\n"


def test_two_at_once_wait_for_each_other(machine, tmp_path):
    machine.put("python3", TOO_OLD)
    (tmp_path / "bin" / "flock").symlink_to(shutil.which("flock"))
    other = os.open(machine.project, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with machine.start() as process:
        assert process.stderr.readline() == "setup: waiting for another one in this folder\n"
        assert process.poll() is None
        os.close(other)
        assert process.stderr.read().startswith("error: this project needs Python 3.10 to 3.13; install one")
    assert process.returncode == 1


def test_a_linked_environment_is_not_cleared(machine, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "kept").touch()
    (machine.project / ".venv").symlink_to(other)
    machine.put("python3", '#!/bin/sh\nexec "{python}" "$@"\n')
    done = machine.run()
    assert done.returncode == 1
    assert f".venv is a link to {other}, which is not made for this folder; remove the link" in done.stderr
    assert [file.name for file in other.iterdir()] == ["kept"]
