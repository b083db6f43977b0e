"""Who may look by TensorBoard, and at pages of jobs: links, marks, what a page may reach (docs/adr/0034)."""

import pytest

from trainshed.access.principals import Bearer
from trainshed.api.calls.links import (
    LIFETIME,
    MOST_JOBS,
    Links,
    jobs_of,
    page_of,
    view_link,
    view_of,
)
from trainshed.core.names import JobUid

WHOSE = "ab" * 32


def links(now: int = 0, key: bytes = b"key", address: str = "http://127.0.0.1:8080") -> Links:
    return Links(key, address, lambda: now)


def test_a_view_names_each_of_its_jobs_once() -> None:
    assert view_of([JobUid(7), JobUid(12), JobUid(7)]) == "7-12"
    assert jobs_of("7-12") == (7, 12)


@pytest.mark.parametrize(
    "view", ["", "-", "7-", "0", "07", "x", "7/8", "..", "7-" * MOST_JOBS + "7", "9" * 20, "7\n"]
)
def test_what_names_no_jobs_is_no_view(view: str) -> None:
    assert jobs_of(view) == ()


def test_a_link_opens_its_own_view_by_its_own_key() -> None:
    uri = links().to_view("7", WHOSE)
    key = uri.rpartition("key=")[2]
    assert uri.startswith("http://127.0.0.1:8080/tensorboard/#view=7&key=")
    assert links().read(view_link("7"), key) == WHOSE
    assert not links().read(view_link("8"), key)
    assert not links().read(view_link("7-8"), key)
    assert not links(key=b"another").read(view_link("7"), key)
    assert not links().read(view_link("7"), "\ud800.\udcff")


def test_a_mark_is_good_for_its_own_view_and_for_a_day() -> None:
    mark = links().mark("7", WHOSE)
    assert links(LIFETIME - 1).lets("7", mark) == WHOSE
    assert not links(LIFETIME).lets("7", mark)
    assert not links().lets("8", mark)
    assert not links(key=b"another").lets("7", mark)
    until, _, signature = mark.partition(".")
    another = links().mark("7", Bearer("nightly@p1.example", by="bo@corp.example"))
    swapped = f"{until}.{another.split('.')[1]}.{mark.split('.')[2]}"
    for other in (
        swapped,
        f"{int(until) + 1}.{signature}",
        f"1.{signature}",
        until,
        "1.x",
        "",
        "\udcff",
    ):
        assert not links().lets("7", other)


def test_behind_a_proxy_with_a_path_both_addresses_may_be_reached() -> None:
    sources = links(address="https://a.example/train/").sources("/tensorboard/7/m/", "127.0.0.1:80")
    assert sources == "a.example/train/tensorboard/7/m/ 127.0.0.1:80/tensorboard/7/m/"


@pytest.mark.parametrize("host", ["[::1]:8080", "a;script-src *", "a b", ""])
def test_a_host_that_a_policy_cannot_name_stands_for_nothing_else(host: str) -> None:
    assert links().sources("/tensorboard/7/m/", host) == "127.0.0.1:8080/tensorboard/7/m/ 'self'"


def test_a_page_has_a_host_and_a_mark_of_its_own_also_after_a_restart() -> None:
    """What another service with the same key has made is as good."""

    def pages(now: int = 0, key: bytes = b"key", below: str = "localhost:80") -> Links:
        return Links(key, "http://127.0.0.1:80", lambda: now, below)

    web = page_of(JobUid(7), "web")
    host = pages().host_of(JobUid(7), "web").removeprefix("http://")
    assert pages().page_at(host) == pages().page_at(host.upper()) == (7, "web")
    for other in (host.replace("web", "wob"), host.replace("-7-", "-8-"), "web", "localhost"):
        assert pages().page_at(other) is None
    assert pages(key=b"another").page_at(host) is None
    assert pages(below="").host_of(JobUid(7), "web") == ""
    assert pages().lets(page_of(JobUid(7), "wob"), pages().mark(web, WHOSE)) is None
