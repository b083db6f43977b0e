"""Tuning jobs in the load of a chaos run. The suggestion process is killed too, idle and busy.

Each run of a trial's program leaves a file, so that a duplicate run is visible.
"""

import urllib.parse
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.chaos.victim import RequestRejected, Unreachable, Victim, request
from tests.e2e.running import Service
from tests.e2e.tuning_programs import TUNING_JOBS, final, tuning_job

TRIALS: Final = 8
_PARALLEL: Final = 2
_SCRIPT: Final = """
run_once({place!r})
for step in range(1, 6):
    while True:
        try:
            report(trial + step, step)
            break
        except OSError:  # The disk is full.
            time.sleep(0.05)
    time.sleep({pause})
"""


@dataclass
class Tuning:
    """A tuning job. `public`: its path, or "" before the response to its submission."""

    name: str
    public: str = ""
    faults_found: list[str] = field(default_factory=list[str])

    @property
    def target(self) -> str:
        return urllib.parse.quote(self.public.removeprefix("/v1/"), safe="")


class Tunings:
    """The tuning jobs of a chaos run. `diary`: directory for files of programs. `pause`: seconds between
    reports."""

    def __init__(self, victim: Victim, diary: Path, count: int, pause: float) -> None:
        self.all = [Tuning(f"tuning_{number}") for number in range(count)]
        self._victim = victim
        self._diary = diary
        self._pause = pause
        self._hands = ThreadPoolExecutor(max(1, count), thread_name_prefix="tuning")
        self._under_way: list[Future[None]] = []

    def submit(self, number: int) -> None:
        """Submit the next tuning job, if any, in a thread."""
        if number < len(self.all):
            self._under_way.append(self._hands.submit(self._submit, self.all[number]))

    def close(self) -> None:
        """Wait for the responses."""
        for future in self._under_way:
            future.result()
        self._hands.shutdown()

    def wrong(self, tuning: Tuning, service: Service) -> Iterator[str]:
        """Check a finished tuning job: spec/tuning#reproducible, no lost and no duplicate trial."""
        yield from tuning.faults_found
        if not tuning.public:
            yield "it was never submitted"
            return
        job = request(service, "GET", tuning.public)
        if job["state"] != "JOB_STATE_SUCCEEDED":
            yield f"it is {job['state']}: {job.get('error')}"
            return
        numbers = [str(number) for number in range(1, TRIALS + 1)]
        if [trial["id"] for trial in job["trials"]] != numbers:
            yield f"its trials are {[trial['id'] for trial in job['trials']]}"
        for trial in job["trials"]:
            if trial["state"] != "SUCCEEDED" or final(trial) != int(trial["id"]) + 5:
                yield f"trial {trial['id']} is {trial['state']}: {trial.get('finalMeasurement')}"
        jobs = [trial["customJob"] for trial in job["trials"]]
        if len(set(jobs)) != len(jobs):
            yield f"two trials have one job: {jobs}"
        runs = Counter(path.name.split(".")[0] for path in (self._diary / tuning.name).iterdir())
        if runs != dict.fromkeys(numbers, 1):
            yield f"the programs of its trials ran so often: {dict(runs)}"

    def _submit(self, tuning: Tuning) -> None:
        place = f"{self._diary.name}/{tuning.name}"
        script = _SCRIPT.format(place=place, pause=self._pause)
        body = tuning_job(script, trials=TRIALS, parallel=_PARALLEL) | {"displayName": tuning.name}
        try:
            tuning.public = self._victim.create(TUNING_JOBS, body)
        except (RequestRejected, Unreachable) as failure:
            tuning.faults_found.append(f"submit: {failure}")
