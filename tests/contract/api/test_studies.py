"""`aiplatform` v1 studies over REST against a real store (spec/tuning#studies, facts/tuning,
spec/clients#surface, spec/clients#conflicts)."""

from typing import Any

from tests.contract.api.house import LOCATION, House
from tests.contract.api.studying import OWN, SPEC, advised

STUDIES = f"{LOCATION}/studies"


async def created(house: House, display_name: str = "tune", **more: Any) -> str:
    answer = await house.result(
        "POST", STUDIES, {"displayName": display_name, "studySpec": SPEC} | more
    )
    return answer["name"]


async def test_create_answers_the_study_and_get_answers_the_same(house: House) -> None:
    answer = await house.result("POST", STUDIES, {"displayName": "tune", "studySpec": SPEC})
    assert answer == {
        "name": "projects/p1/locations/us-central1/studies/1000",
        "displayName": "tune",
        "studySpec": SPEC,
        "state": "ACTIVE",
        "createTime": "2025-10-09T08:53:20Z",
    }
    assert await house.result("GET", f"/v1/{answer['name']}") == answer


async def test_a_display_name_that_is_there_is_a_conflict_and_finds_the_study(house: House) -> None:
    """spec/clients#conflicts: 409 is how Study.create_or_load finds it."""
    name = await created(house)
    again = await house.call("POST", STUDIES, {"displayName": "tune", "studySpec": SPEC})
    assert (again.status, again.error["status"]) == (409, "ALREADY_EXISTS")
    answer = await house.call("POST", f"{STUDIES}:lookup", {"displayName": "tune"})
    assert answer.json["name"] == name
    missing = await house.call("POST", f"{STUDIES}:lookup", {"displayName": "other"})
    assert (missing.status, missing.error["status"]) == (404, "NOT_FOUND")


async def test_list_goes_from_page_to_page_newest_first(house: House) -> None:
    names = [await created(house, f"tune {number}") for number in range(5)]
    seen: list[str] = []
    token = ""
    for _ in range(3):
        page = await house.result("GET", f"{STUDIES}?pageSize=2&pageToken={token}")
        seen += [study["name"] for study in page["studies"]]
        token = page.get("nextPageToken", "")
    assert seen == names[::-1]
    assert token == ""


async def test_a_deleted_study_is_gone_with_its_trials_and_its_name_is_free(house: House) -> None:
    advised(house)
    name = await created(house)
    assert (await house.call("POST", f"/v1/{name}/trials", OWN)).status == 200
    answer = await house.call("DELETE", f"/v1/{name}")
    assert (answer.status, answer.json) == (200, {})
    for path in (name, f"{name}/trials", f"{name}/trials/1"):
        gone = await house.call("GET", f"/v1/{path}")
        assert (gone.status, gone.error["status"]) == (404, "NOT_FOUND"), path
    assert (await house.call("DELETE", f"/v1/{name}")).status == 404
    assert await created(house) != name


async def test_an_unknown_location_and_a_wrong_name_are_refused(house: House) -> None:
    nowhere = STUDIES.replace("us-central1", "atlantis-1")
    answer = await house.call("POST", nowhere, {"displayName": "tune", "studySpec": SPEC})
    assert (answer.status, answer.error["status"]) == (404, "NOT_FOUND")
    assert (await house.call("GET", f"{STUDIES}/77")).status == 404
