"""`iam` changes a bucket's policy; `acl`, `defacl` and the rest of `iam` change nothing, and say so.

What somebody may do with an object depends on its bucket alone: objects have no access lists of their own.
"""

import json
import sys

from trainshed_gsutil import urls
from trainshed_gsutil.commands.context import Context
from trainshed_gsutil.errors import CommandFailure
from trainshed_gsutil.expansion import Expander

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Policy = dict[str, Any]

_SHORT = {
    "admin": "roles/storage.admin",
    "objectAdmin": "roles/storage.objectAdmin",
    "objectCreator": "roles/storage.objectCreator",
    "objectViewer": "roles/storage.objectViewer",
    "legacyBucketReader": "roles/storage.legacyBucketReader",
    "legacyObjectReader": "roles/storage.legacyObjectReader",
}


def run(context: Context) -> int:
    command, arguments = context.asked.command, list(context.asked.arguments)
    verb = arguments[0] if arguments else ""
    if verb not in ("get", "set", "ch"):
        raise CommandFailure('The %s command takes "get", "set" or "ch".' % command)
    given = urls.parse(arguments[-1])
    if command == "iam" and given.is_bucket:
        _bucket_policy(context, verb, arguments[1:])
    elif verb == "get":
        nothing: "Any" = {"bindings": []} if command == "iam" else []
        context.output.result(json.dumps(nothing, indent=2))
    else:
        context.output.error(
            "%s %s: nothing was changed. Who may do what follows from the project of the bucket, "
            "and from its IAM policy"
            " (gsutil iam ch MEMBER:ROLE gs://BUCKET); objects have no lists of their own."
            % (command, verb)
        )
    return 0


def _bucket_policy(context: Context, verb: str, arguments: "list[str]") -> None:
    buckets = [
        name
        for text in arguments
        if text.startswith("gs://")
        for name in Expander(context.storage).buckets(urls.parse(text))
    ]
    rest = [text for text in arguments if not text.startswith("gs://")]
    for bucket in buckets:
        policy = context.storage.policy(bucket)
        if verb == "get":
            context.output.result(json.dumps(policy, indent=2, sort_keys=True))
        elif verb == "set":
            with sys.stdin if rest[-1:] == ["-"] else open(rest[-1]) as file:
                context.storage.set_policy(bucket, json.load(file))
        else:
            context.storage.set_policy(bucket, changed(policy, rest))


def changed(policy: "Policy", changes: "list[str]") -> "Policy":
    """Returns the policy after the changes `MEMBER:ROLE[,ROLE]`: those behind a `-d` are removed, others
    added. Raises CommandFailure."""
    bindings = {each["role"]: list(each["members"]) for each in policy.get("bindings", ())}
    removing = False
    for text in changes:
        if text.startswith("-"):
            removing = text == "-d"
            continue
        member, colon, roles = text.rpartition(":")
        if not colon and not removing:
            raise CommandFailure(
                f"Incorrect public member type for binding {text}: write MEMBER:ROLE."
            )
        if removing and not colon:
            member, roles = text, ",".join(bindings)
        for role in roles.split(","):
            name = _SHORT.get(role, role)
            members = bindings.setdefault(name, [])
            if removing and member in members:
                members.remove(member)
            elif not removing and member not in members:
                members.append(member)
    kept = [{"role": role, "members": members} for role, members in bindings.items() if members]
    return dict(policy, bindings=kept)
