"""What an emulator makes of a job by its plan: a tiny program in place of the job's own, or a refusal. Pure.

The rest of the job's life is real: its states, logs, retries and timeline are those of that program.
"""

import json
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Final

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from trainshed.core.cluster import is_reducer
from trainshed.core.errors import ResourceExhausted
from trainshed.core.job import JobSpec, Program
from trainshed.core.runtime import RuntimeChoice


class Rule(Struct, frozen=True, forbid_unknown_fields=True):
    """What becomes of the jobs that it is for."""

    #: Pattern of display names, for AI Platform of job ids, as of file names: `train-*`.
    job: str
    #: The status with which each replica ends.
    exit_code: Annotated[int, Meta(ge=0, le=255)] = 0
    #: Seconds that each replica runs.
    seconds: Annotated[float, Meta(ge=0)] = 0
    #: What each replica prints on standard error at its end.
    prints: str = ""
    #: What a trial measures, by the ids of metrics.
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    #: Whether the job is refused when it is submitted, because it would exceed a quota.
    over_quota: bool = False


_PROGRAM: Final = """\
import json, os, sys, time, urllib.parse, urllib.request
rule = json.loads(sys.argv[1])
print("The emulator's plan runs this program in place of the job's own: " + sys.argv[1], flush=True)
time.sleep(rule["seconds"])
if file := os.environ.get("CLOUD_ML_HP_METRIC_FILE"):
    with open(file, "w") as lines:
        for metric, value in rule["metrics"].items():
            print(json.dumps({"trial": "0", metric: str(value), "global_step": "1"}), file=lines)
if (model := os.environ.get("AIP_MODEL_DIR")) and not rule["exit_code"]:
    bucket, _, name = model.removeprefix("gs://").partition("/")
    address = os.environ["STORAGE_EMULATOR_HOST"] + "/upload/storage/v1/b/" + bucket + "/o?uploadType=media"
    name = urllib.parse.quote(name + "emulated.txt", safe="")
    urllib.request.urlopen(address + "&name=" + name, data=b"a model")
if rule["prints"]:
    print(rule["prints"], file=sys.stderr)
sys.exit(rule["exit_code"])
"""


def rule_for(plan: Sequence[Rule], display_name: str) -> Rule | None:
    """Return the first rule for a job of that name; None if there is none."""
    return next((rule for rule in plan if fnmatchcase(display_name, rule.job)), None)


def emulated(rule: Rule, spec: JobSpec, runtime: RuntimeChoice) -> JobSpec:
    """Return a specification whose programs, other than reducers, do what the rule says. `runtime`: any with
    Python. Raises ResourceExhausted if the rule refuses the job."""
    if rule.over_quota:
        raise ResourceExhausted(
            "The following quota metrics exceed quota limits: "
            f"{', '.join(_quota_metrics(spec))} (so says the emulator's rule for {rule.job!r})."
        )
    facts = {"exit_code": rule.exit_code, "seconds": rule.seconds, "prints": rule.prints}
    command = ("python3", "-c", _PROGRAM, json.dumps({**facts, "metrics": rule.metrics}))
    pools = tuple(
        pool
        if is_reducer(spec, pool.position)
        else replace(pool, program=_in_place_of(pool.program, runtime, command))
        for pool in spec.pools
    )
    return replace(spec, pools=pools)


def _in_place_of(program: Program, runtime: RuntimeChoice, command: tuple[str, ...]) -> Program:
    return Program(runtime, program.image_uri, command=command, env=program.env)


def _quota_metrics(spec: JobSpec) -> list[str]:
    """Return the names of the public quotas that a job takes from."""
    kinds = {pool.machine.accelerators.type for pool in spec.pools if pool.machine.accelerators}
    names = sorted(kind.removeprefix("NVIDIA_").lower() for kind in kinds)
    gpus = [f"custom_model_training_nvidia_{name}_gpus" for name in names]
    return [f"aiplatform.googleapis.com/{name}" for name in gpus or ["custom_model_training_cpus"]]
