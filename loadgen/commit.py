"""Which commit this program was made from, as far as its installation tells; reads files and asks git, changes nothing."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import subprocess
from pathlib import Path

_PACKAGE = "llm-loadgen"
_ANSWER_S = 5.0


def commit(root: Path | None = None) -> str | None:
    """Twelve digits, with `-dirty` where tracked files differ from it; None where nothing tells.

    `root`: the folder that holds the package, which is a checkout where it holds `.git` too.
    """
    if root is None:
        root = Path(__file__).parents[1]
        if (installed := _installed_from()) is not None:
            return installed
    # Only of its own checkout: a virtual environment may lie within somebody else's.
    if not (root / ".git").exists():
        return None
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        told = subprocess.run(
            command,
            cwd=root,
            env={**environment, "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ANSWER_S,
        )
        return told.stdout.strip() or None if told.returncode == 0 else None
    return None


def _installed_from() -> str | None:
    """What pip noted where it installed from a repository (PEP 610)."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError, OSError, ValueError, KeyError, TypeError):
        noted = importlib.metadata.distribution(_PACKAGE).read_text("direct_url.json")
        if noted is not None:
            return str(json.loads(noted)["vcs_info"]["commit_id"])[:12]
    return None
