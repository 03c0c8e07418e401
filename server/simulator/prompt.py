"""Counts prompts as the served model would: takes text or chat messages, gives token ids; never loads transformers.

The chat template is rendered as `transformers.PreTrainedTokenizerBase.apply_chat_template` renders it (same Jinja
environment, same names), so a client that uses AutoTokenizer on the same folder comes to the same count.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import orjson
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_WORD_MARKS = "Ġ▁"
_MAX_WORDS = 4096


class PromptTokens:
    """The tokenizer folder of the served model, opened."""

    def __init__(self, folder: Path) -> None:
        """FileNotFoundError or ValueError when the folder holds no usable tokenizer; both name the file."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file; a tokenizer folder holds a tokenizer.json")
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise ValueError(f"{path}: not a tokenizer: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        config = _config(folder / "tokenizer_config.json")
        self._special_tokens = {name: _token_text(config[name]) for name in _SPECIAL_TOKENS if config.get(name)}
        source = _template_source(folder, config)
        self._template = _environment().from_string(source) if source is not None else None
        self._word_ids = self._whole_words()
        self.words = list(self._word_ids)
        """Texts of one token each that stay one token in any succession: what a reply is made of. Plain ASCII letters,
        with a space before them where the vocabulary has whole words, so they need no JSON escape."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> str:
        """The text of a conversation; ValueError when the template refuses it or the model has none."""
        if self._template is None:
            raise ValueError("the tokenizer has no chat template; use /v1/completions")
        plain = [{key: value for key, value in message.items() if value is not None} for message in messages]
        try:
            return self._template.render(
                messages=plain,
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        except (jinja2.TemplateError, TypeError) as error:
            raise ValueError(f"the chat template refused the messages: {error}") from error

    def word_id(self, text: str) -> int:
        """The id of one of `words`; -1 for the end of a sequence and for a word that was cut."""
        return self._word_ids.get(text, -1)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Token strings, as in the vocabulary."""
        return [self._tokenizer.id_to_token(i) or "" for i in ids]

    def _whole_words(self) -> dict[str, int]:
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=False)
        letters = dict.fromkeys(token.lstrip(_WORD_MARKS) for token in sorted(vocabulary, key=lambda t: vocabulary[t]))
        candidates = [word for word in letters if word.isascii() and word.isalpha()][:_MAX_WORDS]
        for texts in ([" " + word for word in candidates], candidates):
            encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
            whole = {t: encoding.ids[0] for t, encoding in zip(texts, encodings, strict=True) if len(encoding.ids) == 1}
            if whole:
                return whole
        raise ValueError("the tokenizer has no token made of plain letters, so no reply can be made of its tokens")


def _config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        config = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise ValueError(f"{path}: not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path}: not a JSON object")
    return config


def _token_text(token: str | dict[str, Any]) -> str:
    return token if isinstance(token, str) else str(token["content"])


def _template_source(folder: Path, config: dict[str, Any]) -> str | None:
    """The file wins over the config, as in transformers; of several named templates the one called `default`."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    source = config.get("chat_template")
    if isinstance(source, list):
        return next((str(named["template"]) for named in source if named.get("name") == "default"), None)
    return source


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment


class _Generation(Extension):
    """`{% generation %}` marks the assistant's turns for training; a prompt only needs its inner text."""

    tags = {"generation"}  # noqa: RUF012 - an instance variable to jinja2's types

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
