"""The router of all HTTP surfaces: templates, verbs, names."""

import pytest

from trainshed.httpd.routing import ANY, Router, Template


def router_of(*routes: str) -> Router[str]:
    """Return a router whose targets are the templates themselves."""
    return Router((ANY, Template.parse(path), path) for path in routes)


def test_double_star_in_a_route_does_not_match_the_segments_after_the_double_star() -> None:
    table = router_of("/o/{object=**}", "/o/{object=**}/acl")
    assert table.match("GET", "/o/a/acl") == ("/o/{object=**}/acl", {"object": "a"})
    assert table.match("GET", "/o/acl") == ("/o/{object=**}", {"object": "acl"})
    assert table.match("GET", "/o/a%2Facl") == ("/o/{object=**}", {"object": "a/acl"})


@pytest.mark.parametrize(
    ("path", "job"),
    [
        ("/jobs/7:cancel", "7"),
        ("/jobs/7:start", "7:start"),
        ("/jobs/a:b:cancel", "a:b"),
        ("/jobs/7%3Acancel", "7:cancel"),
    ],
)
def test_unknown_verb_after_a_colon_in_a_path_belongs_to_the_resource_name(path: str, job: str) -> None:
    match = router_of("/jobs/{job}", "/jobs/{job}:cancel").match("GET", path)
    assert match is not None and match[1]["job"] == job


def test_path_matching_takes_linear_time() -> None:
    table = router_of("/o/{object=**}", "/o/{object=**}/acl")
    match = table.match("GET", "/o/" + "/" * 60_000)
    assert match is not None and len(match[1]["object"]) == 60_000


@pytest.mark.parametrize("colon", [":", "%3A", "%3a"])
def test_encoded_colon_before_a_verb_is_accepted(colon: str) -> None:
    """Some clients encode all reserved characters."""
    table = Router(
        (
            ("GET", Template.parse("/jobs/{job}"), "get"),
            ("POST", Template.parse("/jobs/{job}:cancel"), "cancel"),
        )
    )
    assert table.match("POST", f"/jobs/7{colon}cancel") == ("cancel", {"job": "7"})
    assert table.match("POST", f"/jobs/7{colon}fly") is None
    assert table.match("GET", "/jobs/7%3Acancel") == ("get", {"job": "7:cancel"})
