"""What the scripts of this folder have in common: their lines, their prompts, their end; imports the standard library only.

A line is MARK and a JSON object. It stands in the log between whatever the libraries write.
"""

import json
import os
import random
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

MARK = "@@baseline@@ "


def tell(event: str, **more: Any) -> None:
    """One line, in one write: other processes write into the same log, perhaps without an end of line."""
    os.write(1, ("\n" + MARK + json.dumps({"event": event, **more}) + "\n").encode())


def end_with_starter() -> None:
    """Ends the whole process group when standard input ends, as it does when whoever started this is gone."""

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def prompt_ids(vocabulary: int, tokens: int, *seed: int) -> list[int]:
    """Random token ids, other ones for every seed. Special tokens stand at the ends of a vocabulary, so its middle is taken."""
    draw = random.Random("/".join(map(str, seed)))
    return [draw.randrange(vocabulary // 4, 3 * vocabulary // 4) for _ in range(tokens)]


def devices(torch: Any) -> tuple[str, list[dict[str, Any]]]:
    """(type, GPUs) of what torch computes on here by default."""
    if not torch.cuda.is_available():
        return "cpu", []
    every = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    return "cuda", [{"name": one.name, "memory_bytes": one.total_memory} for one in every]


def run(measure: Callable[[dict[str, Any]], object]) -> None:
    """Calls `measure` with what was asked; an exception becomes a line and exit code 1."""
    end_with_starter()
    try:
        measure(json.loads(sys.argv[1]))
    except Exception as error:
        traceback.print_exc()
        tell("error", type=type(error).__name__, message=str(error))
        sys.stdout.flush()
        os._exit(1)  # not sys.exit: a library's threads may hold the process
