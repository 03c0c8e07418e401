"""Writes the reference documents from the code: scenario keys, commands, the table of scenarios; a test compares them.

`python -m loadgen.cli.reference` names the documents that are out of date, with `--write` it writes them.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from loadgen.cli import COMMANDS, GROUPS, load_command
from loadgen.cli.foreign_options import FOREIGN, OTHER_MEANINGS, OtherMeaning
from loadgen.cli.options import SLO_OPTION, aliases, option_names
from loadgen.metrics.reference import prometheus_page
from loadgen.scenario.json_schema import SCHEMA_FILE, scenario_schema
from loadgen.scenario.keys import Key, scenario_keys, section_models

ROOT = Path(__file__).resolve().parents[2]

_SCENARIO_OPTIONS = {option_names(key)[0] for key in scenario_keys().values() if option_names(key)} | {SLO_OPTION}

_MADE = "<!-- Made by `python -m loadgen.cli.reference --write`; change the code, not this file. -->\n"

_SCENARIO = """\
# Scenario reference

A scenario is a YAML file. Every key is optional; without any, the simulator is loaded with the defaults below.
`loadgen validate SCENARIO` checks one and prints it with every default written out.

A value comes from, in this order: an option or `--set section.key=value`; the environment variable
`LOADGEN_SECTION_KEY`; the file; the default. Two choices count as a whole. A `target.base_url` replaces the
`target.server` of a later place in that order, with the settings under `server`; a `target.server` replaces the
`target.base_url`. `--slo` (or `LOADGEN_SLO`) replaces all limits.

- A **duration** is a number with `ms`, `s`, `m` or `h`, such as `500ms`, or several, such as `1m30s`; a bare number is
  seconds. Limits under `slo` need the unit.
- A **percentage** is written `1%` or `0.01`.
- A **sweep** is a list, `[1, 2, 4]` in a file and `1,2,4` on the command line. Settings of the server are swept
  outermost, in the order below; concurrency innermost.
- `null` in a file is `none` on the command line.
- An API key is never part of a scenario: it is read from the environment variable that `target.api_key_env` names.
"""

_SLO = """
`--slo 'ttft_p95<500ms,error_rate<1%'` gives the whole set on the command line.
"""

_CLI = """\
# Command reference

Exit codes: 0 all good; 1 failed to run, or every request failed; 2 bad usage or scenario; 3 no level is valid;
99 a regression, a soak that drifted, or limits that cannot be kept; 130 interrupted. Errors go to standard error as a sentence, with a last line `hint: …` where something can be done.
"""

_COMING_FROM = """\
# Coming from another tool

Options of vLLM bench, guidellm, aiperf, inference-perf, evalscope, Locust, k6 and hey, and what stands for them in `loadgen run`.
What the figures of each mean, and how they differ from ours, is in [benchmarks.md](benchmarks.md) and [metrics.md](metrics.md).

## Taken as they are

"""

_OTHER_MEANINGS = """
`--endpoint` and `--endpoint-type` also take the paths `/v1/chat/completions` and `/v1/completions`, and what vLLM bench calls them:
`openai-chat` is `chat`, `openai` and `vllm` are `completions`. Durations are also written `1m30s`.

## Not with that value

Each of these is refused, since it means something else to the tool that it comes from.

"""

_LIMITED_ARRIVALS = """
`--max-concurrency 16 --request-rate 4` is a limit of the arrivals to vLLM bench and aiperf. Here the two are different loads, and the
limit is `--request-rate 4 --max-in-flight 16`.
"""

_NOT_HERE = """
## Not here, and what is

Each of these is refused with the sentence beside it.

"""

_SCENARIOS = """\
# Scenarios

Each opens with the question it answers. `loadgen run scenarios/smoke.yaml` runs one; every key can be changed on the
command line, see [the reference](../docs/reference-scenario.md). Editors with a YAML language server check keys and values
as they are typed, by [the schema](scenario.schema.json) that the first lines name; `loadgen validate --schema` prints it.
"""

_LOCUSTFILES = """
## Locustfiles

For load that no scenario describes: tasks of one's own, run by plain Locust. See [locustfile](../docs/locustfile.md).
"""


def scenario_reference() -> str:
    """docs/reference-scenario.md."""
    keys = list(scenario_keys().values())
    parts = [_MADE, _SCENARIO]
    for section in ("", *section_models()):
        model = section_models().get(section)
        parts.append(f"\n## {f'`{section}`' if section else 'Top level'}\n\n")
        parts.append(f"{model.__doc__}\n\n" if model else "")
        rows = [_key_row(key) for key in keys if key.section == section]
        parts.append(_table(("key", "default", "meaning", "option", "other names"), rows))
        parts.append(_SLO if section == "slo" else "")
    return "".join(parts)


def _key_row(key: Key) -> tuple[str, ...]:
    option = _code(option_names(key)) or f"`--set {key.path}=…`"
    return (f"`{key.leaf}`", f"`{key.default}`", key.description, option, _code(aliases(key)))


def command_reference() -> str:
    """docs/reference-cli.md."""
    parts = [_MADE, _CLI]
    for name in COMMANDS:
        command = load_command(name)
        if name in GROUPS:
            parts += [_command(f"{name} {inner}", real) for inner, real in command.commands.items()]
        else:
            parts.append(_command(name, command))
    return "".join(parts)


def _command(name: str, command: Any) -> str:
    arguments = [param for param in command.params if param.param_type_name == "argument" and not param.hidden]
    options = [param for param in command.params if param.param_type_name == "option" and not param.hidden]
    takes_scenario = any("--set" in param.opts for param in options)
    own = [param for param in options if not (takes_scenario and param.opts[0] in _SCENARIO_OPTIONS)]
    usage = "".join(f" {_argument(param)}" for param in arguments)
    rows = [(f"`{_argument(param)}`", "", param.help or "") for param in arguments]
    rows += [(_code([*param.opts, *param.secondary_opts]), _value(param), param.help or "") for param in own]
    heading = f"\n## `loadgen {name}`\n\n`loadgen {name}{usage} [OPTIONS]`\n\n{command.help}\n\n"
    others = "\nAnd an option for each key of [a scenario](reference-scenario.md).\n" if takes_scenario else ""
    return heading + (_table(("option", "value", "meaning"), rows) if rows else "") + others


def _argument(param: Any) -> str:
    name = param.metavar or param.name.upper()
    return name if param.required else f"[{name}]"


def _value(param: Any) -> str:
    if getattr(param, "is_flag", False):
        return ""
    default = "" if param.default is None else f", default `{param.default}`"
    return f"`{param.metavar or 'VALUE'}`{default}"


def scenario_table() -> str:
    """scenarios/README.md, from what each scenario opens with: a comment, or the docstring of a locustfile."""
    tables = []
    for kind, pattern, opening in (
        ("scenario", "*.yaml", _opening_comment),
        ("locustfile", "*.py", _opening_docstring),
    ):
        rows = []
        for path in sorted((ROOT / "scenarios").glob(pattern)):
            told = yaml.safe_load(opening(path.read_text(encoding="utf-8")))
            rows.append((f"[{path.stem}]({path.name})", told["Question"], told["Time"], told["Good"]))
        tables.append("\n" + _table((kind, "question", "time", "what good looks like"), rows))
    return _MADE + _SCENARIOS + tables[0] + _LOCUSTFILES + tables[1]


def _opening_docstring(text: str) -> str:
    """The part of it that begins with the question and ends with an empty line."""
    told = ast.get_docstring(ast.parse(text)) or ""
    return told[told.index("Question:") :].partition("\n\n")[0]


def schema_text() -> str:
    """scenarios/scenario.schema.json."""
    return json.dumps(scenario_schema(), indent=1, ensure_ascii=False) + "\n"


def _opening_comment(text: str) -> str:
    lines = text.splitlines()
    end = next(number for number, line in enumerate(lines) if not line.startswith("#"))
    return "\n".join(line.removeprefix("# ") for line in lines[:end])


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def coming_from() -> str:
    """docs/coming-from.md."""
    keys = [key for key in scenario_keys().values() if aliases(key)]
    same = [(_code(aliases(key)), _code(option_names(key)), key.description) for key in keys]
    return "".join(
        (
            _MADE,
            _COMING_FROM,
            _table(("name elsewhere", "name here", "what it sets"), same),
            _OTHER_MEANINGS,
            _table(("option", "here"), (_other_meaning(one) for one in OTHER_MEANINGS)),
            _LIMITED_ARRIVALS,
            _NOT_HERE,
            _table(
                ("option elsewhere", "here"), ((_code(one.options), _told(one.why, one.instead)) for one in FOREIGN)
            ),
        )
    )


def _other_meaning(one: OtherMeaning) -> tuple[str, str]:
    return f"{_code(one.options)} `{one.example}`", _told(*one.told(one.options[0], one.example))


def _told(why: str, instead: str) -> str:
    return f"{why} {instead[0].upper()}{instead[1:]}."


DOCUMENTS = {
    "docs/reference-scenario.md": scenario_reference,
    "scenarios/README.md": scenario_table,
    f"scenarios/{SCHEMA_FILE}": schema_text,
    "docs/reference-cli.md": command_reference,
    "docs/coming-from.md": coming_from,
    "docs/prometheus.md": prometheus_page,
}
"""Each document, by its path from the root of the project, and what it should hold."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadgen.cli.reference")
    parser.add_argument("--write", action="store_true", help="write the documents that are out of date")
    write = parser.parse_args().write
    stale = 0
    for name, wanted in DOCUMENTS.items():
        path, text = ROOT / name, wanted()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if write:
            path.write_text(text, encoding="utf-8")
        print(f"{name}: {'written' if write else 'out of date'}")
        stale += not write
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
