"""An attempt's environments on the job's timeline (spec/operations#why-it-waits: it says at every moment why
a job waits)."""

from tests.unit.jobs import PRIMARY, SECOND, Life, job
from trainshed.core.lifecycle.events import (
    JobAdmitted,
    PreparationAdvanced,
    RuntimePrepared,
)

PLACES = JobAdmitted(((PRIMARY, "a"),))


def _said(life: Life) -> list[tuple[str, str]]:
    return [(entry.kind, entry.message) for entry in life.told]


def test_what_is_built_is_told_until_it_is_there_and_how_long_it_took() -> None:
    life = Life(job(1)).see(PLACES)
    before = life.job
    life.see(PreparationAdvanced(1, "Downloading torch (180MiB)", 12 * SECOND))
    assert life.job == before
    assert _said(life)[-1] == ("building", "After 12 s: Downloading torch (180MiB)")
    life.see(RuntimePrepared(1, 28_140_000_000))
    assert _said(life)[-1] == (
        "launching",
        "The runtime is ready after 28 s; starting all replicas.",
    )
