"""Operations have the types of the version that their reader speaks: the generated REST clients of both, over
loopback."""

import pytest

from tests.contract.api.house import LOCATION, House
from tests.contract.api.studying import SPEC, advised


@pytest.mark.anyio
async def test_where_no_version_is_said_the_one_counts_through_which_it_was_made(
    house: House,
) -> None:
    advised(house)
    study = await house.call(
        "POST", f"{LOCATION}/studies", {"displayName": "study", "studySpec": SPEC}
    )
    name = study.json["name"]
    kinds: list[str] = []
    for version in ("v1beta1", "v1"):
        made = await house.call(
            "POST",
            f"/{version}/{name}/trials:suggest",
            {"suggestionCount": 1, "clientId": version},
        )
        answer = await house.call("GET", f"/ui/{made.json['name']}")
        assert answer.json == made.json
        assert answer.json["response"]["@type"].endswith(f".{version}.SuggestTrialsResponse")
        kinds.append(answer.json["metadata"]["@type"])
        # Who asks for the other one's operation by its version is answered in his own.
        for wanted in ("v1", "v1beta1"):
            other = await house.call("GET", f"/{wanted}/{made.json['name']}")
            assert f".{wanted}." in other.json["metadata"]["@type"]
        assert (await house.call("GET", f"/ui/{made.json['name']}")).json == made.json
    listed = await house.call("GET", f"/ui/{name}/operations")
    assert sorted(
        operation["metadata"]["@type"] for operation in listed.json["operations"]
    ) == sorted(kinds)
