"""The simulator's own small tokenizer: says where its folder is, and loads nothing.

The folder opens offline with `AutoTokenizer.from_pretrained(folder())`. Its files are made by
`python -m server.simulator.tokenizer.train` and kept in the repository.
"""

from __future__ import annotations

from pathlib import Path


def folder() -> Path:
    """The folder that holds `tokenizer.json`, `tokenizer_config.json` and the chat template."""
    return Path(__file__).parent
