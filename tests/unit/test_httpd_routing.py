"""The router that every surface finds its methods by: templates, verbs, names."""

import pytest

from trainshed.httpd.routing import ANY, Router, Template


def router(*routes: str, empty_names: bool = False, colon_is_verb: bool = False) -> Router[str]:
    """A router whose targets are the templates themselves."""
    return Router(
        ((ANY, Template.parse(path), path) for path in routes),
        empty_names=empty_names,
        colon_is_verb=colon_is_verb,
    )


def test_variables_behind_the_rest_count_from_the_end() -> None:
    copy = "/o/{object=**}/rewriteTo/b/{to_bucket}/o/{to_object}"
    found = router("/o/{object=**}", copy).match("POST", "/o/a/b%2Fc/rewriteTo/b/B/o/x%20y")
    assert found == (copy, {"object": "a/b/c", "to_bucket": "B", "to_object": "x y"})


def test_what_stands_behind_the_rest_is_no_part_of_it() -> None:
    table = router("/o/{object=**}", "/o/{object=**}/acl")
    assert table.match("GET", "/o/a/acl") == ("/o/{object=**}/acl", {"object": "a"})
    assert table.match("GET", "/o/acl") == ("/o/{object=**}", {"object": "acl"})
    assert table.match("GET", "/o/a%2Facl") == ("/o/{object=**}", {"object": "a/acl"})


def test_a_literal_comes_before_a_name_and_a_name_before_the_rest() -> None:
    table = router("/{all=**}", "/{name}", "/health")
    assert table.match("GET", "/health") == ("/health", {})
    assert table.match("GET", "/healthy") == ("/{name}", {"name": "healthy"})
    assert table.match("GET", "/health/y") == ("/{all=**}", {"all": "health/y"})


@pytest.mark.parametrize(
    ("path", "lenient", "strict"),
    [
        ("/jobs/7:cancel", "7", "7"),
        ("/jobs/7:start", "7:start", None),
        ("/jobs/a:b:cancel", "a:b", "a:b"),
        ("/jobs/7%3Acancel", "7:cancel", "7:cancel"),
    ],
)
def test_a_colon_is_a_verb_where_the_router_says_so(
    path: str, lenient: str | None, strict: str | None
) -> None:
    for colon_is_verb, name in ((False, lenient), (True, strict)):
        table = router("/jobs/{job}", "/jobs/{job}:cancel", colon_is_verb=colon_is_verb)
        found = table.match("GET", path)
        assert (found[1]["job"] if found else None) == name


def test_a_name_is_empty_only_where_the_router_says_so() -> None:
    assert router("/b/{bucket}").match("GET", "/b/") is None
    assert router("/b/{bucket}", empty_names=True).match("GET", "/b/") == (
        "/b/{bucket}",
        {"bucket": ""},
    )


def test_the_method_given_comes_before_any() -> None:
    table = Router([("GET", Template.parse("/a"), "read"), (ANY, Template.parse("/a"), "other")])
    assert [table.match(method, "/a") for method in ("GET", "PUT")] == [("read", {}), ("other", {})]


def test_of_two_routes_with_one_shape_the_first_is_reached() -> None:
    table = Router[str]()
    assert table.add("GET", Template.parse("/a/{x}"), "first")
    assert not table.add("GET", Template.parse("/a/{y}"), "second")


def test_a_long_path_costs_no_more_than_its_length() -> None:
    table = router("/o/{object=**}", "/o/{object=**}/acl", empty_names=True)
    found = table.match("GET", "/o/" + "/" * 60_000)
    assert found is not None
    assert len(found[1]["object"]) == 60_000


@pytest.mark.parametrize("colon", [":", "%3A", "%3a"])
def test_an_encoded_colon_is_the_verbs_where_no_name_fits(colon: str) -> None:
    """As clients send it that encode whatever they can."""
    table = Router(
        (
            ("GET", Template.parse("/jobs/{job}"), "get"),
            ("POST", Template.parse("/jobs/{job}:cancel"), "cancel"),
        )
    )
    assert table.match("POST", f"/jobs/7{colon}cancel") == ("cancel", {"job": "7"})
    assert table.match("POST", f"/jobs/7{colon}fly") is None
    assert table.match("GET", "/jobs/7%3Acancel") == ("get", {"job": "7:cancel"})
