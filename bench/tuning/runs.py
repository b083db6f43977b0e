"""One run: a candidate works on a problem for a number of trials, in a separate process. It uses the
interface of algorithms.

`python -m bench.tuning.runs` reads tasks as JSON lines, and writes each result as a JSON line. Of Trainshed's
dependencies it requires only msgspec, numpy and, for the real tasks, scikit-learn. Any environment can
therefore run it.
"""

import hashlib
import json
import random
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.tuning.engines import Engine, algorithm_of
from bench.tuning.learning import BEST_KNOWN, real_tasks
from bench.tuning.pitfalls import pitfalls
from bench.tuning.problems import METRIC, made
from trainshed import studies
from trainshed.core.study.records import Measurement, TrialState
from trainshed.core.study.spec import Algorithm as AlgorithmName
from trainshed.studies.advisor_process import algorithm_for
from trainshed.studies.port import Algorithm, TrialData

RANDOM = "random"
CANDIDATES = (RANDOM, *(engine.value for engine in Engine))
USUAL, PITFALLS = "usual", "pitfalls"
SETS = {USUAL: (*made(), *real_tasks()), PITFALLS: pitfalls()}
PROBLEMS = {problem.name: problem for problems in SETS.values() for problem in problems}


@dataclass(frozen=True, slots=True)
class Task:
    """The task of one run. `pending`: number of trials that are evaluated at the same time; 1 = one after
    another."""

    problem: str
    pending: int
    candidate: str
    seed: int
    trials: int


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one run.

    `regrets`: after each trial, the regret of the best trial so far; below 0 if it is better than the best
    known value. `seconds`: mean per suggestion. `version`: the version of the candidate's code.
    """

    task: Task
    version: str
    regrets: tuple[float, ...]
    seconds: float


def run(task: Task) -> Result:
    """Run the task. Raises ImportError if the candidate's library is not installed."""
    problem, algorithm = PROBLEMS[task.problem], candidate(task.candidate)
    objective = problem.objective(task.seed)
    draw = random.Random(f"{task.problem}:{task.seed}:noise")
    trials: list[TrialData] = []
    regrets: list[float] = []
    best, regret, spent = float("inf"), float("inf"), 0.0
    for done in range(task.trials):
        missing = min(task.trials, done + task.pending) - len(trials)
        begun = time.perf_counter()
        proposed = algorithm.suggest(problem.spec, trials, missing, task.seed).parameters
        spent += time.perf_counter() - begun
        for parameters in proposed:
            trials.append(TrialData(len(trials) + 1, TrialState.ACTIVE, parameters))
        oldest = trials[done]
        true = objective(dict(oldest.parameters))
        if true is None:
            trials[done] = TrialData(oldest.number, TrialState.INFEASIBLE, oldest.parameters)
        else:
            measured = problem.report(true, draw)
            final = Measurement(((METRIC, measured),))
            trials[done] = TrialData(oldest.number, TrialState.SUCCEEDED, oldest.parameters, final)
            if measured < best:
                best, regret = measured, true - problem.least
        regrets.append(regret)
    return Result(task, version(task), tuple(regrets), spent / task.trials)


def candidate(name: str) -> Algorithm:
    if name == RANDOM:
        return algorithm_for(AlgorithmName.RANDOM_SEARCH)
    return algorithm_of(Engine(name))


def version(task: Task) -> str:
    """Return a digest of the code that determines a candidate's results.

    The code is this service's code and the problems, or for a library its adapter. After a change of the
    library's version, delete the stored results.
    """
    problems = ["pitfalls.py", "problems.py"]
    if task.problem in BEST_KNOWN:
        problems.append("learning.py")
    digest = hashlib.sha256()
    for file in (*own_code(task.candidate), *(Path(__file__).parent / name for name in problems)):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


_DECIDE_NOTHING = ("port.py", "advisor_client.py", "advisor_process.py")


def own_code(candidate: str) -> list[Path]:
    """Return the files of this repository that determine a candidate's proposals."""
    root = Path(next(iter(studies.__path__)))
    if candidate == RANDOM:
        files = list(root.glob("*.py"))
    elif candidate == Engine.GP_BANDIT:
        files = [*root.glob("*.py"), *root.glob("gp/**/*.py")]
    else:
        files = list((Path(__file__).parent / "engines").glob("*.py"))
    return sorted(file for file in files if file.name not in _DECIDE_NOTHING)


def to_json(result: Result) -> str:
    return json.dumps(asdict(result), separators=(",", ":"))


def from_json(line: str) -> Result:
    """Return the result in a line. Raises ValueError, KeyError or TypeError if the line is invalid or
    truncated."""
    fields: Any = json.loads(line)
    task = Task(**fields["task"])
    return Result(task, fields["version"], tuple(fields["regrets"]), fields["seconds"])


def main() -> None:
    for line in sys.stdin:
        print(to_json(run(Task(**json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
