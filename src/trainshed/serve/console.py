"""The console of a service: what it is built from."""

import asyncio

from trainshed.access.sessions import Sessions
from trainshed.api.calls.services import Services
from trainshed.api.inside import InsideCaller
from trainshed.cli.spelling import typed
from trainshed.console.application import ConsoleApplication
from trainshed.console.facts import Facts
from trainshed.serve import clock
from trainshed.serve.addresses import browsers_address
from trainshed.serve.bootstrap import Bootstrap

SESSIONS = "sessions.json"


def build_console(
    bootstrap: Bootstrap, services: Services, closing: asyncio.Event
) -> ConsoleApplication:
    """`closing`: the service stops."""
    settings = bootstrap.settings
    facts = Facts(
        version=services.settings.version,
        project=settings.project,
        region=settings.region,
        bucket=settings.default_bucket,
        address=browsers_address(settings, bootstrap.listener.getsockname()[1]).rstrip("/"),
        command=typed(),
    )
    sessions = Sessions(settings.data / SESSIONS, lambda: bootstrap.tokens, clock.now)
    return ConsoleApplication(
        sessions, InsideCaller(services), facts=facts, now=clock.now, closing=closing
    )
