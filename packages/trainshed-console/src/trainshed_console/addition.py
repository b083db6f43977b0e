"""Adds the console to the service: its applications by path, and the sign-in link for browsers."""

from trainshed.access.principals import Credential
from trainshed.api.additions import Addition, AdditionContext, Mounts
from trainshed.api.calls.registry import Registry
from trainshed.api.calls.services import Services
from trainshed.core.names import DEFAULT_BUCKET
from trainshed_console.application import ConsoleApplication
from trainshed_console.in_process import InProcessCaller
from trainshed_console.mcp.protocol import McpSurface
from trainshed_console.sessions import Sessions
from trainshed_console.signing_in import SigningIn
from trainshed_console.views import FIRST_SEGMENTS, Facts


def new_addition(context: AdditionContext) -> Addition:
    """Build the console of a service. The function is an `AdditionFactory`."""
    settings = context.settings
    sessions = Sessions(
        context.data / "sessions.json",
        context.authenticate,
        context.tokens,
        context.now,
        context.access.record,
    )
    signing_in = SigningIn(
        context.issuers, context.access, context.sign_in_key, f"{settings.pages}/login/back", context.now
    )
    facts = Facts(
        version=settings.version,
        project=settings.project,
        region=settings.region,
        bucket=DEFAULT_BUCKET,
        address=settings.pages,
    )

    def mounts(services: Services, registry: Registry) -> Mounts:
        api = InProcessCaller(services, registry)
        console = ConsoleApplication(
            sessions,
            api,
            context.gateway,
            signing_in=signing_in,
            facts=facts,
            now=context.now,
            closing=context.closing,
        )
        agents = McpSurface(settings, context.authenticate, api)
        return {**dict.fromkeys(FIRST_SEGMENTS, console), "mcp": agents}

    def link(shown: Credential) -> str:
        return facts.login_link(sessions.link_code(shown))

    return Addition(mounts=mounts, link=link)
