"""Which commit the program was made from: that of its own checkout, or none."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from loadgen.commit import commit

pytestmark = pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=n", "-c", "user.email=n@example.com", "-c", "commit.gpgsign=false"]
    told = subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, text=True, check=True)
    return told.stdout.strip()


def test_a_checkout_tells_its_commit_and_whether_files_differ_from_it(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "code.py").write_text("1")
    git(tmp_path, "add", "code.py")
    git(tmp_path, "commit", "--quiet", "-m", "x")
    git(tmp_path, "tag", "v1")
    head = git(tmp_path, "rev-parse", "HEAD")[:12]
    assert commit(tmp_path) == head
    (tmp_path / "code.py").write_text("2")
    assert commit(tmp_path) == f"{head}-dirty"


def test_the_commit_of_somebody_elses_checkout_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "-m", "x")
    installed = tmp_path / "venv/lib/site-packages"
    installed.mkdir(parents=True)
    assert commit(tmp_path) is not None
    monkeypatch.setenv("GIT_DIR", str(tmp_path / ".git"))
    assert commit(installed) is None


def test_without_git_or_a_commit_nothing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "--quiet")
    assert commit(tmp_path) is None
    git(tmp_path, "commit", "--quiet", "--allow-empty", "-m", "x")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit(tmp_path) is None
