"""Takes the words of a command line, refuses the first that only another load tool understands; parses nothing else."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest

from loadgen.cli.foreign_options import ARRIVALS, FOREIGN, OTHER_MEANINGS, USERS
from loadgen.errors import UsageError

_BY_OPTION = {option: one for one in FOREIGN for option in one.options}
_JOINED = re.compile(r"(-[A-Za-z])([^=].*)")
"""`-u10`."""


def refuse_foreign(args: Sequence[str], known: Collection[str]) -> None:
    """UsageError for the first of the words of a command line that is another tool's option, or has its value. `known`: the
    command's own options."""
    given: dict[str, str] = {}
    for option, value in _options(args):
        for other in OTHER_MEANINGS:
            if option in other.options and re.fullmatch(other.values, value, re.IGNORECASE):
                why, instead = other.told(option, value)
                raise UsageError(why, hint=instead)
        found = None if option in known else _BY_OPTION.get(option)
        if found is not None:
            raise UsageError(f"There is no option {option}. {found.why}", hint=found.instead)
        given[option] = value
    _refuse_limited_arrivals(given)


def _options(args: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each word that may be an option, with what is joined to it or follows it."""
    for word, following in zip_longest(args, args[1:], fillvalue=""):
        if word == "--":
            return
        joined = _JOINED.fullmatch(word)
        option, equals, value = (joined[1], "=", joined[2]) if joined else word.partition("=")
        yield option, value if equals else following


def _refuse_limited_arrivals(given: dict[str, str]) -> None:
    users = next((option for option in USERS if given.get(option, "").isdecimal()), None)
    rate = next((option for option in ARRIVALS if option in given), None)
    if users is None or rate is None:
        return
    raise UsageError(
        f"{users} {given[users]} and {rate} {given[rate]} are two kinds of load: users who ask again when they are "
        "answered, and arrivals at a rate.",
        hint=f"for arrivals of which at most {given[users]} are in flight, give --request-rate {given[rate]} "
        f"--max-in-flight {given[users]}; else keep one",
    )
