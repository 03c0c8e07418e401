"""Counts tokens as the server does: with the model's tokenizer, or by asking the server. Builds no prompts.

`transformers` is imported only when a `LocalCounter` is made; a `ServerCounter` is synchronous and meant for the
controller before load begins, never for a loop that measures.
"""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import orjson

from loadgen.prompts.errors import PromptError
from loadgen.route import Route

REQUEST_TIMEOUT_S = 30.0


Message = Mapping[str, str]
"""`role` and `content`."""


class TokenCounter(Protocol):
    """What is needed to make prompts of an exact length."""

    def count_text(self, text: str) -> int:
        """Tokens of `text` as the prompt of `/v1/completions`, with the special tokens that the tokenizer adds."""

    def count_chat(self, content: str) -> int:
        """Tokens of one user message at `/v1/chat/completions`: chat template and generation prompt included."""

    def count_messages(self, messages: Sequence[Message]) -> int:
        """The same of a whole conversation, each message with its `role` and `content`."""

    def describe(self) -> str:
        """Whose count it is, for messages and the run's provenance."""


class LocalCounter:
    """Counts with a tokenizer from a folder, the local cache or the Hugging Face hub."""

    def __init__(self, name_or_folder: str | Path) -> None:
        """Raises `PromptError` when no such tokenizer is found."""
        # Without these, transformers remarks that there is no PyTorch, and tokenizers warns about every later fork.
        os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        name = str(name_or_folder)
        try:
            self._tokenizer = _loaded(name)
        # Whatever is raised here (OSError, ValueError, errors of the hub's client and of the tokenizer's own files)
        # means the same to the user, and its text is the best reason that there is.
        except Exception as error:
            raise PromptError(
                f"The tokenizer {name!r} could not be loaded: {_excerpt(str(error) or type(error).__name__)}",
                "give workload.tokenizer a folder with tokenizer.json and tokenizer_config.json, or a name on the "
                "Hugging Face hub that this machine can reach (HF_TOKEN for a gated one).",
            ) from error
        self._name = name

    def count_text(self, text: str) -> int:
        return len(self._tokenizer(text)["input_ids"])

    def count_chat(self, content: str) -> int:
        """Raises `PromptError` when the tokenizer has no chat template."""
        return self.count_messages([{"role": "user", "content": content}])

    def count_messages(self, messages: Sequence[Message]) -> int:
        """Raises `PromptError` when the tokenizer has no chat template, or one that refuses such messages."""
        if self._tokenizer.chat_template is None:
            raise PromptError(
                f"The tokenizer {self._name!r} has no chat template, so a chat message cannot be counted.",
                "use target.endpoint: completions, or a tokenizer with a chat template.",
            )
        from jinja2 import TemplateError  # there since the tokenizer was loaded

        try:
            rendered = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages], tokenize=True, add_generation_prompt=True, return_dict=True
            )
        except TemplateError as error:
            raise PromptError(
                f"The chat template of the tokenizer {self._name!r} refuses the messages: {_excerpt(str(error))}",
                "leave out what it does not know: a shared beginning of a conversation is its system message.",
            ) from None
        return len(rendered["input_ids"])

    def describe(self) -> str:
        return f"the tokenizer {self._name}"


class ServerCounter:
    """Counts by POST `{base_url}/tokenize`, as vLLM and the simulator answer it."""

    def __init__(
        self, base_url: str, *, model: str | None = None, api_key: str | None = None, route: Route | None = None
    ) -> None:
        """`base_url` is the server's root; a trailing `/v1` is left off. `api_key` travels as a bearer token."""
        self._url = base_url.rstrip("/").removesuffix("/v1") + "/tokenize"
        self._model = {} if model is None else {"model": model}
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._opener = (route or Route()).opener()

    def count_text(self, text: str) -> int:
        """Raises `PromptError` when the server does not answer with a count."""
        return self._count({"prompt": text, "add_special_tokens": True})

    def count_chat(self, content: str) -> int:
        """Raises `PromptError` when the server does not answer with a count."""
        return self.count_messages([{"role": "user", "content": content}])

    def count_messages(self, messages: Sequence[Message]) -> int:
        """Raises `PromptError` when the server does not answer with a count."""
        # The template writes the special tokens itself: the chat endpoint adds none, so neither may the count.
        return self._count(
            {
                "messages": [dict(message) for message in messages],
                "add_generation_prompt": True,
                "add_special_tokens": False,
            }
        )

    def describe(self) -> str:
        return self._url

    def _count(self, question: dict[str, Any]) -> int:
        request = urllib.request.Request(
            self._url, data=orjson.dumps(self._model | question), headers=self._headers, method="POST"
        )
        try:
            with self._opener.open(request, timeout=REQUEST_TIMEOUT_S) as answer:
                body = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(error.code, error.read(300).decode("utf-8", "replace")) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise PromptError(
                f"{self._url} could not be reached: {reason}.", "check target.base_url and that the server is up."
            ) from error
        try:
            count = orjson.loads(body)["count"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            count = None
        if type(count) is not int:
            raise PromptError(
                f"{self._url} answered without a token count: {_excerpt(body.decode('utf-8', 'replace'))}",
                _GIVE_A_TOKENIZER,
            )
        return count

    def _refused(self, code: int, body: str) -> PromptError:
        if code in (401, 403):
            return PromptError(
                f"{self._url} answered {code}: the API key is missing or wrong.", "set the API key of the target."
            )
        if code in (404, 405, 501):
            return PromptError(f"The server has no /tokenize: {self._url} answered {code}.", _GIVE_A_TOKENIZER)
        return PromptError(f"{self._url} answered {code}: {_excerpt(body)}", _GIVE_A_TOKENIZER)


_GIVE_A_TOKENIZER = "give workload.tokenizer, a name on the Hugging Face hub or a folder with the model's tokenizer."


def _loaded(name: str) -> Any:
    from transformers import AutoTokenizer

    folder = Path(name).expanduser()
    if folder.is_dir():
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if name.startswith((".", "/", "~")):
        raise FileNotFoundError("there is no such folder.")
    try:
        return AutoTokenizer.from_pretrained(name, local_files_only=True)
    except Exception:
        from huggingface_hub import model_info

        # Asked first because it fails at once: without a network the download itself retries for most of a minute.
        try:
            model_info(name, timeout=10)
        except Exception as error:
            raise OSError(f"it is not in this machine's cache, and the Hugging Face hub says: {error}") from error
        return AutoTokenizer.from_pretrained(name)


def _excerpt(text: str) -> str:
    return " ".join(text.split())[:200] or "(an empty body)"
