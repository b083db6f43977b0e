"""Methods that no descriptor set has: they take JSON, and answer it, as it is."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec import Struct

from trainshed.access.principals import Principal
from trainshed.api.calls.services import Services


class HandCall(Struct, frozen=True):
    """One call of such a method."""

    principal: Principal
    services: Services
    #: Full name of the method.
    method: str
    #: The variables of its path.
    names: Mapping[str, str]
    body: Mapping[str, Any]
    #: Scheme and authority by which the caller reached the service.
    root: str


HandHandler = Callable[[HandCall], Awaitable[dict[str, Any]]]
"""Finds out whether the caller may, and does what is asked. Raises the errors of `api.calls.errors`."""

HandMethods = Mapping[tuple[str, str], tuple[str, HandHandler]]
"""Methods by HTTP verb and path, with their full names."""
