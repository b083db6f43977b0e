"""Generates scenarios of tuning jobs and pipelines: small handwritten ones, and additions to
random worlds.
"""

import dataclasses
import random

from msgspec.structs import replace

from tests.sim.plain_scenarios import REGION
from tests.sim.scenario import (
    DAY,
    HOUR,
    MINUTE,
    Cancel,
    CancelTrial,
    Character,
    Request,
    Scenario,
    SubmitParent,
)
from tests.sim.tuning_jobs import OUTPUT, pipeline, study_spec, trial_spec, tuning
from tests.unit.jobs import CREATED, MACHINE, SECOND
from trainshed.core import pipelines
from trainshed.core.capacity import Node
from trainshed.core.job import Scheduling
from trainshed.core.lifecycle.records import Job, Parent
from trainshed.core.names import Api, JobName, JobUid
from trainshed.core.pipelines import Pipeline, Task
from trainshed.core.study.spec import Goal, MedianStopping, Selection
from trainshed.core.tuning.records import TuningJob
from trainshed.core.works import Work
from trainshed.scheduler.model import Policy

ROOMY = (Node("node-0", MACHINE.vcpus * 8, MACHINE.memory_bytes * 8),)


def one_family_scenario(*works: Work, character: Character | None = None) -> Scenario:
    """Return a scenario with one family of works, submitted immediately. `character`: behavior of its
    programs."""
    own = character or Character(10 * MINUTE, measures=3)
    return Scenario(
        1,
        ROOMY,
        Policy(strict=True),
        (SubmitParent(CREATED, works),),
        {work.uid: own for work in works},
        downs=(MINUTE,),
    )


def stopping(job: TuningJob) -> TuningJob:
    """Return the tuning job with a rule for early stopping."""
    spec = replace(job.spec.study, median_stopping=MedianStopping())
    return replace(job, spec=replace(job.spec, study=spec))


def with_custom_job(number: int = 8000, *, model: str | None = "m") -> tuple[Pipeline, Job]:
    """Return a pipeline and its custom job, as the API creates them."""
    made = pipeline(number, model=model)
    uid = JobUid(number + 1)
    backing = Job(
        uid,
        JobName(Api.VERTEX, made.name.project_id, REGION, str(uid)),
        f"{made.display_name}-custom-job",
        "{}",
        CREATED,
        CREATED,
        spec=trial_spec(),
        parent=Parent(made.uid, made.name),
    )
    return pipelines.create_pipeline(made, backing), backing


def with_tuning_job(number: int = 8000, *, trials: int = 3) -> tuple[Pipeline, TuningJob]:
    """Return a pipeline with a hyperparameter task, and its tuning job."""
    made = pipeline(number, task=Task.TUNING)
    backing = replace(tuning(number + 1, trials=trials, parallel=2), parent=Parent(made.uid, made.name))
    return pipelines.create_pipeline(made, backing), backing


def add_tuning(world: Scenario) -> Scenario:
    """Return the world, with some tuning jobs and pipelines in one of three worlds."""
    dice = random.Random(f"families {world.seed}")
    if dice.random() > 1 / 3:
        return world
    requests: list[Request] = []
    characters: dict[JobUid, Character] = {}
    for number in range(dice.choice((1, 1, 2, 4))):
        works = _family(dice, 5000 + 10 * number)
        at = CREATED + dice.choice((0, dice.randint(0, DAY)))
        requests.append(SubmitParent(at, works))
        characters |= dict.fromkeys((work.uid for work in works), _character(dice))
        requests += _user_requests(dice, at, works)
    return dataclasses.replace(
        world,
        requests=tuple(sorted((*world.requests, *requests), key=lambda request: request.at)),
        characters=world.characters | characters,
        points=dice.choice((None, None, 2, 5)),
        bar=dice.choice((0, 0, 0.3, 0.6)),
        no_models=dice.choice(((), (), (f"{OUTPUT}/model", f"{OUTPUT}/1/model"))),
    )


def _family(dice: random.Random, number: int) -> tuple[Work, ...]:
    kind = dice.choice(("tuning", "tuning", "custom", "both"))
    if kind == "custom":
        return with_custom_job(number, model=dice.choice((None, "m", f"m{number}")))
    if kind == "both":
        return with_tuning_job(number, trials=dice.choice((1, 4)))
    trials = dice.choice((1, 4, 9))
    made = tuning(
        number,
        api=dice.choice((Api.VERTEX, Api.VERTEX, Api.ML)),
        trials=trials,
        parallel=dice.randint(1, trials),
        failed=dice.choice((0, 0, trials)),
        spec=study_spec(dice.choice(tuple(Goal)), dice.choice(tuple(Selection))),
        scheduling=Scheduling(
            timeout=dice.choice((7 * DAY, 7 * DAY, 2 * HOUR)), max_wait=dice.choice((None, None, 30 * MINUTE))
        ),
    )
    return (stopping(made) if dice.random() < 0.5 else made,)


def _character(dice: random.Random) -> Character:
    trouble = dice.choice((0, 0, 0.1, 0.5))
    kind = dice.choice(("crash", "exit", "kill", "oom", "start_fails"))
    own = Character(
        dice.choice((MINUTE, 20 * MINUTE, 3 * HOUR)),
        measures=dice.choice((1, 3, 3, 10)),
        mute=dice.choice((0, 0, 0.3)),
        term_takes=dice.choice((0, SECOND)),
    )
    return dataclasses.replace(own, **{kind: trouble})


def _user_requests(dice: random.Random, at: int, works: tuple[Work, ...]) -> list[Request]:
    requests: list[Request] = []
    soon = dice.choice((SECOND, 10 * MINUTE, 6 * HOUR))
    if dice.random() < 0.3:
        requests.append(Cancel(at + dice.randint(0, soon), dice.choice(works).uid))
    for work in works:
        if isinstance(work, TuningJob) and dice.random() < 0.3:
            trial = dice.randint(1, work.spec.max_trials)
            requests.append(CancelTrial(at + dice.randint(0, soon), work.uid, trial))
    return requests
