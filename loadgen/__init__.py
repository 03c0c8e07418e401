"""Distributed load generation for OpenAI-compatible LLM servers.

`LLMUser` and `OpenLoopLLMUser` are for locustfiles (docs/locustfile.md). They bring Locust along, which no command of ours
wants before it is needed, so they are imported when somebody asks for them.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loadgen.locustfile.users import LLMUser, OpenLoopLLMUser

__version__ = "0.1.0"
__all__ = ["LLMUser", "OpenLoopLLMUser", "__version__"]


def __getattr__(name: str) -> Any:
    if name not in ("LLMUser", "OpenLoopLLMUser"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Whoever has the classes gets a run of ours: the listeners come with them.
    import loadgen.locustfile.hooks  # noqa: F401
    from loadgen.locustfile import users

    return getattr(users, name)
