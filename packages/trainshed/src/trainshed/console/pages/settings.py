"""The page of the service: its status, what its engine promises, and the names of secrets."""

from trainshed.console.visits import View, Visit
from trainshed.wire.trainshed_v1.jobs import Status
from trainshed.wire.trainshed_v1.secrets import SecretList


async def page(visit: Visit) -> View:
    """`/settings`: the service."""
    status = await visit.get(Status, "status")
    project, _ = visit.place
    secrets = (
        await visit.get_if_allowed(SecretList, "secrets", project=project) if project else None
    )
    facts = {"status": status, "secrets": secrets or SecretList()}
    return View("Service", "settings.html", facts, place="settings")
