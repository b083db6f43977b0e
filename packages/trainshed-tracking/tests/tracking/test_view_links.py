"""Links to views in TensorBoard, and what its page may reach (docs/adr/0034)."""

import pytest

from tests.unit.test_links import WHOSE, links
from trainshed.api.calls.links import MOST_JOBS
from trainshed.core.names import JobUid
from trainshed_tracking.viewers.views import jobs_of, link_to, sources_of, view_link, view_of


def test_a_view_names_each_of_its_jobs_once() -> None:
    assert view_of([JobUid(7), JobUid(12), JobUid(7)]) == "7-12"
    assert jobs_of("7-12") == (7, 12)


@pytest.mark.parametrize(
    "view", ["", "-", "7-", "0", "07", "x", "7/8", "..", "7-" * MOST_JOBS + "7", "9" * 20, "7\n"]
)
def test_what_names_no_jobs_is_no_view(view: str) -> None:
    assert jobs_of(view) == ()


def test_a_link_opens_its_own_view_by_its_own_key() -> None:
    uri = link_to(links(), "7", WHOSE)
    key = uri.rpartition("key=")[2]
    assert uri.startswith("http://127.0.0.1:8080/tensorboard/#view=7&key=")
    assert links().read(view_link("7"), key) == WHOSE
    assert not links().read(view_link("8"), key)
    assert not links().read(view_link("7-8"), key)
    assert not links(key=b"another").read(view_link("7"), key)
    assert not links().read(view_link("7"), "\ud800.\udcff")


def test_behind_a_proxy_with_a_path_both_addresses_may_be_reached() -> None:
    sources = sources_of("https://a.example/train", "/tensorboard/7/m/", "127.0.0.1:80")
    assert sources == "a.example/train/tensorboard/7/m/ 127.0.0.1:80/tensorboard/7/m/"


@pytest.mark.parametrize("host", ["[::1]:8080", "a;script-src *", "a b", ""])
def test_a_host_that_a_policy_cannot_name_stands_for_nothing_else(host: str) -> None:
    sources = sources_of(links().address, "/tensorboard/7/m/", host)
    assert sources == "127.0.0.1:8080/tensorboard/7/m/ 'self'"
