"""Quotas of a project in a region, and of people in it: list, set (spec/queue#quotas).

Without `project` and `region` the service's own are meant.
"""

from typing import Final

from msgspec import structs

from trainshed.access.policy import member_fault, member_of
from trainshed.api.trainshed_v1.call import Fields, JsonCall, near
from trainshed.api.trainshed_v1.places import read_place
from trainshed.core.capacity import EACH, QuotaKey, QuotaStatus
from trainshed.core.catalog import quotas as catalog
from trainshed.store import audit
from trainshed.wire.trainshed_v1 import capacity as records

UNLIMITED: Final = "unlimited"
_LARGEST: Final = 10**12


async def list_(call: JsonCall) -> records.QuotaList:
    """`GET /trainshed/v1/quotas?project=P&region=R[&all=true]`: list each quota that has a limit or is used,
    those of no region included; with `all` those of every metric that jobs may use."""
    fields = Fields({name: call.parameter(name) or None for name in ("project", "region")})
    project, region = read_place(call, fields, "quotas")
    fields.refuse()
    known = {
        quota.key: quota
        for quota in call.services.capacity.quotas(project)
        if quota.key.region in (region, catalog.GLOBAL)
    }
    if call.flag("all"):
        keys = (_key_of(project, region, metric, "") for metric in catalog.metrics())
        known = {key: _without_limit(key) for key in keys} | known
    ordered = sorted(known, key=lambda key: (key.metric, key.person))
    return records.QuotaList(
        project=project, region=region, quotas=tuple(quota_view(known[key]) for key in ordered)
    )


async def set_(call: JsonCall) -> records.PlacedQuota:
    """`POST /trainshed/v1/quotas:set`: set a quota, or take its limit away. A job that was admitted under
    another limit keeps its capacity."""
    fields = call.fields()
    key = _key(call, fields)
    limit = _limit(fields)
    fields.refuse()
    return await _change(call, key, limit)


async def _change(call: JsonCall, key: QuotaKey, limit: float | None) -> records.PlacedQuota:
    """Set a limit, or clear it, and return the quota as it is then."""
    services = call.services
    if (record := audit.under_way()) is not None:
        after = UNLIMITED if limit is None else limit
        record.resource = f"quota of {key.metric} in {key.region}"
        record.resource += f" for {key.person}" if key.person else ""
        record.detail = {"before": _view_of(call, key).limit, "after": after}
    if limit is None:
        await services.intake.clear_quota(key)
    else:
        await services.intake.set_quota(key, limit)
    await services.capacity.capacity_changed()
    return _view_of(call, key)


def quota_view(quota: QuotaStatus) -> records.Quota:
    return records.Quota(
        metric=quota.key.metric,
        user=quota.key.person,
        limit=UNLIMITED if quota.limit is None else quota.limit,
        used=quota.used,
        waiting=quota.waiting,
    )


def _without_limit(key: QuotaKey) -> QuotaStatus:
    """Return a quota that the capacity view does not list."""
    return QuotaStatus(key, None, 0, 0)


def _view_of(call: JsonCall, key: QuotaKey) -> records.PlacedQuota:
    """Return the quota as it is now."""
    quotas = call.services.capacity.quotas(key.project_id)
    quota = next((candidate for candidate in quotas if candidate.key == key), _without_limit(key))
    return records.PlacedQuota(
        project=key.project_id, region=key.region, **structs.asdict(quota_view(quota))
    )


def _key(call: JsonCall, fields: Fields) -> QuotaKey:
    project, region = read_place(call, fields, "quotas")
    metric = fields.text("metric", required=True)
    known = catalog.metrics()
    if metric and metric not in known:
        advice = near(metric, known) or " Those that have a limit: trainshed quotas list --all"
        fields.fault("metric", f"{metric!r} is not a metric that jobs use.{advice}")
    user = fields.text("user")
    if user and user != EACH and (fault := member_fault(member_of(user))):
        fields.fault("user", f"{fault} Or {EACH!r}: whoever has no limit of their own.")
    return _key_of(project, region, metric, user)


def _key_of(project: str, region: str, metric: str, person: str) -> QuotaKey:
    is_of_all = metric in catalog.OF_ALL_REGIONS
    return QuotaKey(project, catalog.GLOBAL if is_of_all else region, metric, person)


def _limit(fields: Fields) -> float | None:
    if fields.raw("limit") == UNLIMITED:
        return None
    if isinstance(fields.raw("limit"), str):
        fields.fault("limit", f'It must be a number of at least 0, or "{UNLIMITED}".')
        return 0
    return fields.number("limit", most=_LARGEST, required=True)
