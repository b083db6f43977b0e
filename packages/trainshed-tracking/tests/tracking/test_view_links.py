"""Links to TensorBoard views, and the Content-Security-Policy of their pages (docs/adr/0034)."""

import pytest

from tests.unit.test_links import WHOSE, links
from trainshed.api.calls.links import MAX_JOBS
from trainshed.core.names import JobUid
from trainshed_tracking.viewers.views import jobs_of, link_to, sources_of, view_link, view_of


def test_tensorboard_view_name_contains_each_job_once() -> None:
    assert view_of([JobUid(7), JobUid(12), JobUid(7)]) == "7-12"
    assert jobs_of("7-12") == (7, 12)


@pytest.mark.parametrize(
    "view", ["", "-", "7-", "0", "07", "x", "7/8", "..", "7-" * MAX_JOBS + "7", "9" * 20, "7\n"]
)
def test_malformed_tensorboard_view_name_is_rejected(view: str) -> None:
    assert jobs_of(view) == ()


def test_tensorboard_view_link_is_valid_only_for_its_view_and_key() -> None:
    uri = link_to(links(), "7", WHOSE)
    key = uri.rpartition("key=")[2]
    assert uri.startswith("http://127.0.0.1:8080/tensorboard/#view=7&key=")
    assert links().read(view_link("7"), key) == WHOSE
    assert not links().read(view_link("8"), key)
    assert not links().read(view_link("7-8"), key)
    assert not links(key=b"another").read(view_link("7"), key)
    assert not links().read(view_link("7"), "\ud800.\udcff")


def test_content_security_policy_allows_proxy_and_direct_addresses() -> None:
    sources = sources_of("https://a.example/train", "/tensorboard/7/m/", "127.0.0.1:80")
    assert sources == "a.example/train/tensorboard/7/m/ 127.0.0.1:80/tensorboard/7/m/"


@pytest.mark.parametrize("host", ["[::1]:8080", "a;script-src *", "a b", ""])
def test_malformed_host_cannot_inject_content_security_policy_sources(host: str) -> None:
    sources = sources_of(links().address, "/tensorboard/7/m/", host)
    assert sources == "127.0.0.1:8080/tensorboard/7/m/ 'self'"
