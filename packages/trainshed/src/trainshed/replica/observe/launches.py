"""Records beside a replica's log how its program was started.

A line of `launches.jsonl` is one incarnation:

    {"incarnation": N, "at": NS, "argv": [..], "directory": PATH, "names": [..], "values": {NAME: TEXT},
    "hostname": NAME, "address": IP, "level": LEVEL, "user": N, "memory": BYTES, "disk": BYTES,
    "processes": N, "gpus": [UUID]}

`names`: of all its environment variables. `values`: only of those in `SHOWN`, because others may be
confidential. Long values are cut, secrets are masked. `user`: id of the program's user, -1 = the service's
own. A limit of 0 = none; `hostname` and `address` "" = the machine's. If the record cannot be written, the
program runs nevertheless.
"""

import json
import os
from typing import Any

from trainshed.replica import protocol
from trainshed.replica.observe import masking

FILE = "launches.jsonl"

SHOWN = (
    *("CLUSTER_SPEC", "TF_CONFIG", "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"),
    *("CUDA_VISIBLE_DEVICES", "CLOUD_ML_TRIAL_ID", "HOSTNAME", "HOME", "PATH", "TMPDIR"),
    *("AIP_MODEL_DIR", "AIP_CHECKPOINT_DIR", "AIP_TENSORBOARD_LOG_DIR", "AIP_DATA_FORMAT"),
    *("AIP_TRAINING_DATA_URI", "AIP_VALIDATION_DATA_URI", "AIP_TEST_DATA_URI"),
)
"""Variables whose values are written down."""
_LONGEST = 16 << 10
"""Characters of a value, and of an argument."""
_MOST_ARGUMENTS = 200
_CUT = "…"


def note(plan: protocol.LaunchDocument, at: int, mask: masking.Mask | None) -> None:
    """Record that the plan's program was started at that moment (ns)."""
    environ = plan.program.environ

    def shown(text: str) -> str:
        cut = text if len(text) <= _LONGEST else text[:_LONGEST] + _CUT
        return mask.text(cut) if mask is not None else cut

    argv = [shown(word) for word in plan.program.argv[:_MOST_ARGUMENTS]]
    entry: dict[str, Any] = {
        "incarnation": plan.incarnation,
        "at": at,
        "argv": argv + [_CUT] * (len(plan.program.argv) > _MOST_ARGUMENTS),
        "directory": plan.program.directory,
        "names": sorted(environ),
        "values": {name: shown(environ[name]) for name in SHOWN if name in environ},
        "hostname": plan.isolation.hostname,
        "address": plan.network.address,
        "level": plan.isolation.level,
        "user": plan.isolation.users[0] if plan.isolation.users else -1,
        "memory": plan.limits.memory_limit,
        "disk": plan.limits.disk_limit,
        "processes": plan.limits.pids_limit,
        "gpus": list(plan.observation.gpus),
    }
    text = json.dumps(entry) + "\n"
    path = os.path.join(plan.observation.logs, FILE)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(handle, text.encode("utf-8", "replace"))
        finally:
            os.close(handle)
    except OSError:
        pass  # The disk may be full: the record is not needed.
