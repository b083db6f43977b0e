"""The advisor process of the service (docs/adr/0018), tested with real processes started by its client."""

import asyncio
import os
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.sim.tuning_jobs import METRIC, study_spec
from trainshed.core.study.records import Measurement, TrialState
from trainshed.core.study.spec import Algorithm, MedianStopping, Parameter, ParameterType, StudySpec
from trainshed.studies import advisor_client as client
from trainshed.studies.advisor_client import ProcessAdvisor
from trainshed.studies.advisor_process import SuggestCall, algorithm_for
from trainshed.studies.gp.bandit import outlook
from trainshed.studies.port import AdvisorFailed, Curve, Proposals, TrialData


def spec(algorithm: Algorithm = Algorithm.RANDOM_SEARCH) -> StudySpec:
    plain = study_spec()
    return StudySpec(plain.parameters, plain.metrics, algorithm, median_stopping=MedianStopping())


@pytest.fixture
async def advisor() -> AsyncIterator[ProcessAdvisor]:
    """An advisor that is closed after the test, with no remaining processes."""
    advisor = ProcessAdvisor()
    yield advisor
    await advisor.close()


SEEN = (TrialData(1, TrialState.SUCCEEDED, (("x", 0.5),), Measurement(((METRIC, 0.5),), 1)),)


async def test_advisor_process_returns_the_suggestions_of_the_algorithm(advisor: ProcessAdvisor) -> None:
    """spec/tuning#algorithms: repeated calls return the same result as the algorithm in this process."""
    answer = await advisor.suggest(spec(), SEEN, 3, 7)
    assert answer == algorithm_for(Algorithm.RANDOM_SEARCH).suggest(spec(), SEEN, 3, 7)
    assert await advisor.suggest(spec(), SEEN, 3, 7) == answer
    lags = Curve(2, (Measurement(((METRIC, 0.1),), 1),), is_over=False)
    others = [Curve(n, (Measurement(((METRIC, 0.9),), 1),), is_over=True) for n in range(3, 9)]
    verdict, other = await advisor.should_stop(spec(), [*others, lags], [2, 3])
    assert verdict.should_stop
    assert verdict.why
    assert not other.should_stop
    expected = await advisor.outlook(spec(Algorithm.DEFAULT), SEEN, ["x"])
    assert expected == outlook(spec(Algorithm.DEFAULT), SEEN, ["x"]) and "so far" in expected.reason


async def test_failed_suggestion_does_not_affect_the_next_suggestion_request(
    advisor: ProcessAdvisor, capfd: pytest.CaptureFixture[str]
) -> None:
    nothing = Parameter("x", ParameterType.DISCRETE)
    broken = StudySpec((nothing,), spec().metrics, Algorithm.RANDOM_SEARCH)
    with pytest.raises(AdvisorFailed, match="status 1"):
        await advisor.suggest(broken, (), 1, 7)
    assert "Traceback" in capfd.readouterr().err
    await advisor.suggest(spec(), SEEN, 1, 7)


async def test_concurrent_suggestion_requests_are_answered(advisor: ProcessAdvisor) -> None:
    answers = await asyncio.gather(*(advisor.suggest(spec(), SEEN, 1, seed) for seed in range(3)))
    random = algorithm_for(Algorithm.RANDOM_SEARCH)
    assert answers == [random.suggest(spec(), SEEN, 1, seed) for seed in range(3)]


async def test_closing_the_advisor_ends_running_requests_and_rejects_new_requests(
    advisor: ProcessAdvisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_process(monkeypatch, "import time; time.sleep(600)")
    asking = asyncio.create_task(advisor.suggest(spec(), SEEN, 1, 7))
    while not advisor._running:  # noqa: ASYNC110 # pyright: ignore[reportPrivateUsage] # nothing else shows it
        await asyncio.sleep(0.01)
    await advisor.close()
    with pytest.raises(AdvisorFailed, match="status -9"):
        await asking
    with pytest.raises(AdvisorFailed, match="the service is stopping"):
        await advisor.suggest(spec(), SEEN, 1, 7)


# --- misbehaving processes, simulated by scripts ---


def replace_process(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Run this script instead of the advisor process."""
    real = asyncio.create_subprocess_exec

    async def other(program: str, *arguments: str, **how: Any) -> asyncio.subprocess.Process:
        assert arguments == ("-P", "-m", "trainshed.studies.advisor_process", str(os.getpid()))
        return await real(program, "-c", script, **how)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", other)


async def test_advisor_imports_no_modules_from_the_working_directory(
    advisor: ProcessAdvisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The working directory of the service may contain a user's program."""
    (tmp_path / "msgspec.py").write_text("raise SystemExit")
    monkeypatch.chdir(tmp_path)
    assert (await advisor.suggest(spec(), SEEN, 1, 7)).parameters


async def test_advisor_process_that_exceeds_the_timeout_is_killed(
    advisor: ProcessAdvisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_TIMEOUT", 0.2)
    replace_process(monkeypatch, "import sys, time; sys.stdin.buffer.read(); time.sleep(600)")
    with pytest.raises(AdvisorFailed, match="did not respond within"):
        await advisor.suggest(spec(), SEEN, 1, 7)
    assert not advisor._running  # pyright: ignore[reportPrivateUsage] # nothing else shows it


# --- the process itself ---


def test_library_output_does_not_corrupt_the_advisor_response() -> None:
    """Python and native writes to standard output are redirected to standard error."""
    talking = textwrap.dedent(
        """
        import os
        from trainshed.studies import advisor_process as process
        plain = process.algorithm_for

        def loud(*which):
            print("hello from a library", flush=True)
            os.write(1, b"and from its C code\\n")
            return plain(*which)

        process.algorithm_for = loud
        process.main()
        """
    )
    done = subprocess.run(
        (sys.executable, "-c", talking, str(os.getpid())),
        input=msgspec.json.encode(SuggestCall(spec(), SEEN, 1, 7)),
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert msgspec.json.decode(done.stdout, type=Proposals).parameters
    for line in (b"hello from a library", b"and from its C code"):
        assert line in done.stderr


def test_advisor_client_import_does_not_load_numpy() -> None:
    """The service imports the client. Only the advisor process needs NumPy."""
    code = "import sys, trainshed.studies.advisor_client; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
