"""Read the field violations of a rejected request."""

from tests.contract.api.api_service import Answer


def violations(answer: Answer) -> dict[str, str]:
    """Return the description of each wrong field in a rejected request."""
    assert (answer.status, answer.error["status"]) == (400, "INVALID_ARGUMENT"), answer.body
    (details,) = answer.error["details"]
    return {violation["field"]: violation["description"] for violation in details["fieldViolations"]}


def fields(answer: Answer) -> set[str]:
    """Return the wrong fields of a rejected request."""
    return set(violations(answer))
