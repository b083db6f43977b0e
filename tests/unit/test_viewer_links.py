"""Who may look by TensorBoard: links, cookies, the addresses that a page may reach (docs/adr/0034)."""

import pytest

from trainshed.api.calls.view_links import LIFETIME, MOST_JOBS, ViewLinks, jobs_of, view_of
from trainshed.core.names import JobUid


def links(now: int = 0, key: bytes = b"key", address: str = "http://127.0.0.1:8080") -> ViewLinks:
    return ViewLinks(key, address, lambda: now)


def cookie(view: str, now: int = 0, origin: str = "") -> str:
    (found,) = links(now).cookies(view, origin, "http")
    return found.decode()


def test_a_view_names_each_of_its_jobs_once() -> None:
    assert view_of([JobUid(7), JobUid(12), JobUid(7)]) == "7-12"
    assert jobs_of("7-12") == (7, 12)


@pytest.mark.parametrize(
    "view", ["", "-", "7-", "0", "07", "x", "7/8", "..", "7-" * MOST_JOBS + "7", "9" * 20, "7\n"]
)
def test_what_names_no_jobs_is_no_view(view: str) -> None:
    assert jobs_of(view) == ()
    assert not links().opens(view, "")


def test_a_link_opens_its_own_view_by_its_own_key() -> None:
    uri = links().link("7")
    key = uri.rpartition("key=")[2]
    assert uri.startswith("http://127.0.0.1:8080/tensorboard/#view=7&key=")
    assert links().opens("7", key)
    assert not links().opens("8", key)
    assert not links().opens("7-8", key)
    assert not links(key=b"another").opens("7", key)
    assert not links().opens("7", "\udcff")


def test_a_cookie_is_good_for_its_own_view_and_for_a_day() -> None:
    sent = cookie("7").partition(";")[0]
    assert links(LIFETIME - 1).lets("7", f"a=b; {sent}; c=d")
    assert not links(LIFETIME).lets("7", sent)
    assert not links().lets("8", sent)
    assert not links(key=b"another").lets("7", sent)
    assert not links().lets("7", sent.replace("trainshed_tensorboard", "other"))
    assert not links().lets("7", "")


def test_a_cookie_is_of_one_path_and_out_of_reach_of_scripts() -> None:
    parts = cookie("7-8").split("; ")[1:]
    assert parts == ["Path=/tensorboard/7-8/", "Max-Age=86400", "HttpOnly", "SameSite=Strict"]
    assert cookie("7", origin="https://a.example").endswith("; Secure")


def test_behind_a_proxy_with_a_path_there_is_a_cookie_for_that_as_well() -> None:
    behind = links(address="https://a.example/train/")
    paths = [each.decode().split("; ")[1] for each in behind.cookies("7", "", "http")]
    assert paths == ["Path=/tensorboard/7/", "Path=/train/tensorboard/7/"]
    sources = behind.sources("7", "127.0.0.1:8080")
    assert sources == "a.example/train/tensorboard/7/ 127.0.0.1:8080/tensorboard/7/"


@pytest.mark.parametrize("host", ["[::1]:8080", "a;script-src *", "a b", ""])
def test_a_host_that_a_policy_cannot_name_stands_for_nothing_else(host: str) -> None:
    assert links().sources("7", host) == "127.0.0.1:8080/tensorboard/7/ 'self'"
