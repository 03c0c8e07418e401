"""How long an endpoint stays after a run: from the visits of scrapers, or as it was asked; and what ends the wait."""

import contextlib
import re
import time
import urllib.request
from collections.abc import Iterator

import gevent
import pytest
from gevent.event import Event

from loadgen.controller.live import LiveRun
from loadgen.metrics.scrapes import LONGEST_S, Scrapes
from loadgen.scenario.model import Scenario
from tests.fleet.test_run import free_port

END_S = 1000.0


def visited(
    *instants_s: float, announced: bool = True, address: str = "10.0.0.3", into: Scrapes | None = None
) -> Scrapes:
    scrapes = into or Scrapes()
    for at_s in instants_s:
        scrapes.note(address, "agent", at_s, announced=announced)
    return scrapes


def linger_s(scrapes: Scrapes, end_s: float = END_S) -> float | None:
    linger = scrapes.linger(end_s)
    return None if linger is None else linger.seconds


def test_nobody_is_waited_for_when_nobody_came() -> None:
    assert Scrapes().linger(END_S) is None


def test_a_scraper_is_waited_for_twice_its_interval() -> None:
    linger = visited(965, 980, 995).linger(END_S)
    assert linger is not None
    assert linger.seconds == 30
    assert linger.reason == "the scraper at 10.0.0.3 comes every 15 s"


def test_a_missed_scrape_does_not_change_the_interval() -> None:
    assert linger_s(visited(920, 935, 965, 980, 995)) == 30


def test_the_slowest_of_several_scrapers_decides() -> None:
    scrapes = visited(*range(900, 1000, 5))
    assert linger_s(visited(940, 970, address="10.0.0.4", into=scrapes)) == 60


def test_two_scrapers_at_one_time_are_not_one_that_is_twice_as_fast() -> None:
    scrapes = visited(970, 980, 990)
    assert linger_s(visited(971, 981, 991, address="10.0.0.4", into=scrapes)) == 20


def test_no_scraper_is_waited_for_longer_than_two_minutes() -> None:
    assert linger_s(visited(400, 700)) == LONGEST_S == 120


def test_a_scraper_that_came_once_is_waited_for_until_its_interval_is_known() -> None:
    scrapes = visited(990)
    assert linger_s(scrapes) == LONGEST_S
    visited(1005, into=scrapes)
    assert linger_s(scrapes) == 30


def test_a_scraper_that_has_gone_is_not_waited_for() -> None:
    assert linger_s(visited(900, 915, 930)) is None
    assert linger_s(visited(870)) is None


def test_a_person_who_looks_twice_is_not_a_scraper_and_a_tool_that_comes_again_and_again_is() -> None:
    assert linger_s(visited(960, 990, announced=False)) is None
    assert linger_s(visited(960, 975, 990, announced=False)) == 30


def test_who_comes_only_after_the_end_is_not_waited_for() -> None:
    assert linger_s(visited(1001, 1002, 1003)) is None


@contextlib.contextmanager
def serving(linger: str | None = None) -> Iterator[tuple[LiveRun, str]]:
    """A run that has nothing to tell, and the address of its endpoint."""
    port = free_port()
    live = LiveRun(Scenario.model_validate({"metrics": {"port": port, "linger": linger}}))
    live.serve()
    try:
        yield live, f"http://127.0.0.1:{port}/metrics"
    finally:
        live.close()


def scrape(url: str) -> None:
    request = urllib.request.Request(url, headers={"X-Prometheus-Scrape-Timeout-Seconds": "10"})
    urllib.request.urlopen(request, timeout=10).close()


def finish_s(live: LiveRun, stop: Event) -> float:
    began = time.monotonic()
    live.finish([], stop)
    return time.monotonic() - began


def test_the_endpoint_stays_two_intervals_after_the_last_scrape_and_says_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serving() as (live, url):
        for _ in range(3):
            scrape(url)
            time.sleep(0.3)
        assert 0.5 < finish_s(live, Event()) < 2
        scrape(url)
    assert re.fullmatch(
        r"/metrics stays up for 0\.[67] s, since the scraper at 127\.0\.0\.1 comes every 0\.3 s; Ctrl-C ends it at once\n",
        capsys.readouterr().err,
    )


def test_the_endpoint_goes_at_once_and_silently_when_nobody_scraped(capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as (live, _):
        assert finish_s(live, Event()) < 0.5
    assert capsys.readouterr().err == ""


def test_a_linger_of_zero_is_none_whoever_scrapes() -> None:
    with serving("0s") as (live, url):
        scrape(url)
        assert finish_s(live, Event()) < 0.5


def test_a_given_linger_is_taken_as_it_is_though_nobody_scraped(capsys: pytest.CaptureFixture[str]) -> None:
    with serving("700ms") as (live, _):
        assert 0.7 <= finish_s(live, Event()) < 2
    assert "for 0.7 s, since metrics.linger asks for it" in capsys.readouterr().err


def test_a_signal_ends_the_wait() -> None:
    stop = Event()
    with serving("30s") as (live, _):
        gevent.get_hub().loop.update_now()  # its clock stood still while the hub had no turn
        gevent.spawn_later(0.5, stop.set)
        assert 0.3 < finish_s(live, stop) < 2


def test_a_signal_that_came_while_the_files_were_written_ends_the_wait_before_it_begins(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stop = Event()
    stop.set()
    with serving("30s") as (live, _):
        assert finish_s(live, stop) < 0.5
    assert capsys.readouterr().err == ""


def test_a_run_without_an_endpoint_does_not_wait() -> None:
    live = LiveRun(Scenario.model_validate({"metrics": {"port": None, "linger": "30s"}}))
    live.serve()
    assert finish_s(live, Event()) < 0.5
