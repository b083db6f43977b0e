"""Puts secrets into launch plans, at the last moment: what comes of it is handed to a shim and to nobody
else."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from trainshed.core.launch import LaunchPlan
from trainshed.core.secrets import SecretRef, named_in, resolved
from trainshed.engines.port import LaunchRejected, SecretDoor


async def revealed(
    plans: Sequence[LaunchPlan], secrets: SecretDoor | None
) -> list[tuple[LaunchPlan, tuple[str, ...]]]:
    """The plans in their order, each as its program is to have it, with the texts that must not get into its
    log.

    Plans that need no secret are returned as they are, and nothing is waited for. Raises what
    `SecretDoor.values` raises.
    """
    known: dict[tuple[str, frozenset[SecretRef]], Mapping[SecretRef, str]] = {}
    found: list[tuple[LaunchPlan, tuple[str, ...]]] = []
    for plan in plans:
        refs = named_in(plan.argv, plan.environ)
        if not refs:
            found.append((plan, ()))
            continue
        if secrets is None:
            raise LaunchRejected("The job names secrets, and this engine was given no way to them.")
        # A gang's replicas mostly need the same ones.
        key = (plan.project, refs)
        if key not in known:
            known[key] = await secrets.values(*key)
        argv, environ, masked = resolved(plan.argv, plan.environ, known[key])
        found.append((replace(plan, argv=argv, environ=environ), masked))
    return found
