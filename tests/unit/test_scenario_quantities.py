"""Values of a scenario: what is read as what, and what is refused."""

import pytest

from loadgen.scenario.quantities import format_duration, format_share, parse_base_url, parse_duration, parse_share


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("500ms", 0.5),
        ("5s", 5.0),
        ("2m", 120.0),
        ("1h", 3600.0),
        ("1.5 s", 1.5),
        (" 20 ", 20.0),
        (3, 3.0),
        (0.25, 0.25),
        ("0", 0.0),
        ("1m30s", 90.0),
        ("1h30m", 5400.0),
        ("1H2M3S", 3723.0),
        (" 1h5s ", 3605.0),
    ],
)
def test_a_duration_is_a_number_with_a_unit_several_of_these_or_seconds(written: object, seconds: float) -> None:
    assert parse_duration(written) == seconds


@pytest.mark.parametrize(
    "written",
    [
        "",
        "s",
        "1 week",
        "5sec",
        "-1s",
        -1,
        True,
        None,
        [5],
        "1.2.3s",
        "30s1m",
        "1m30",
        "1.5m30s",
        "1m-30s",
        "1m 30s",
        "nan",
        float("nan"),
        float("inf"),
    ],
)
def test_anything_else_is_not_a_duration(written: object) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(written)


def test_an_absurd_exponent_is_refused_without_being_computed() -> None:
    with pytest.raises(ValueError, match="longer than any run"):
        parse_duration("1e999999999s")


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(0, "0s"), (0.5, "500ms"), (1, "1s"), (1.5, "1.5s"), (120, "120s"), (0.000001, "0.001ms"), (100.000000001, None)],
)
def test_a_duration_is_read_back_as_it_was_written(seconds: float, written: str | None) -> None:
    text = format_duration(seconds)
    assert written in (None, text)
    assert round(parse_duration(text) * 1e9) == round(seconds * 1e9)


@pytest.mark.parametrize(("written", "share"), [("1%", 0.01), ("0.5 %", 0.005), (0.01, 0.01), ("100%", 1.0), (0, 0.0)])
def test_a_share_is_a_percentage_or_a_number_below_one(written: object, share: float) -> None:
    assert parse_share(written) == share
    assert parse_share(format_share(share)) == share


@pytest.mark.parametrize("written", ["101%", "-1%", "half", "nan", "inf", None, True])
def test_anything_else_is_not_a_share(written: object) -> None:
    with pytest.raises(ValueError, match=r"percentage|could mean"):
        parse_share(written)


@pytest.mark.parametrize("written", [1, "1", 5])
def test_a_bare_one_is_refused_since_it_could_be_one_or_a_hundred_percent(written: object) -> None:
    with pytest.raises(ValueError, match=f"{written} could mean {written} % or {int(str(written)) * 100} %"):
        parse_share(written)


@pytest.mark.parametrize(
    ("written", "url"),
    [
        ("http://h:8000", "http://h:8000"),
        ("http://h:8000/", "http://h:8000"),
        ("http://h:8000/v1", "http://h:8000"),
        ("http://h:8000/v1/", "http://h:8000"),
        ("https://h/v1/chat/completions", "https://h"),
        ("https://gateway/llm/v1", "https://gateway/llm"),
        ("https://gateway/team-v1", "https://gateway/team-v1"),
        ("http://[::1]:8000/v1", "http://[::1]:8000"),
    ],
)
def test_v1_is_taken_off_a_base_url_and_a_gateways_path_is_kept(written: str, url: str) -> None:
    assert parse_base_url(written) == url


@pytest.mark.parametrize(
    ("written", "wrong"),
    [
        ("localhost:8000", "no scheme"),
        ("h", "no scheme"),
        ("ftp://h", "begins with ftp://"),
        ("http:h", "no scheme"),
        ("http://", "no host"),
        ("http://h:port", "not a URL"),
        ("http://h:99999", "not a URL"),
        ("http://h?x=1", "query"),
        ("http://user:pw@h", "password"),
        ("", "not a URL"),
        (8000, "not a URL"),
    ],
)
def test_a_base_url_that_cannot_be_used_is_refused(written: object, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        parse_base_url(written)
