"""Reads what a refused request is told."""

from tests.contract.api.house import Answer


def violations(answer: Answer) -> dict[str, str]:
    """What a refused request is told of each field that is wrong."""
    assert (answer.status, answer.error["status"]) == (400, "INVALID_ARGUMENT"), answer.body
    (details,) = answer.error["details"]
    return {
        violation["field"]: violation["description"] for violation in details["fieldViolations"]
    }


def fields(answer: Answer) -> set[str]:
    """The fields of a refused request that are wrong."""
    return set(violations(answer))
