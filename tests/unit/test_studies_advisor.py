"""The advisor's process as the service uses it (docs/adr/0018): real processes, started by the client
alone. Which algorithm serves which study."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.sim.tuning_jobs import METRIC, study_spec
from trainshed.core.study.records import Measurement, TrialState
from trainshed.core.study.spec import Algorithm, MedianStopping, Parameter, ParameterType, StudySpec
from trainshed.studies import advisor_client as client
from trainshed.studies.advisor_client import ProcessAdvisor
from trainshed.studies.advisor_process import HEAD, SuggestCall, algorithm_for, frame
from trainshed.studies.gp.bandit import outlook
from trainshed.studies.port import AdvisorFailed, Curve, Seen


def spec(algorithm: Algorithm = Algorithm.RANDOM_SEARCH) -> StudySpec:
    plain = study_spec()
    return StudySpec(plain.parameters, plain.metrics, algorithm, median_stopping=MedianStopping())


@pytest.fixture
async def advisor() -> AsyncIterator[ProcessAdvisor]:
    """One that is closed in the end; nothing of it lives then."""
    advisor = ProcessAdvisor()
    yield advisor
    await advisor.close()


def pid_of(advisor: ProcessAdvisor) -> int:
    running = advisor._process  # pyright: ignore[reportPrivateUsage] # the one that is to be killed
    assert running is not None
    return running.pid


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


SEEN = (Seen(1, TrialState.SUCCEEDED, (("x", 0.5),), Measurement(((METRIC, 0.5),), 1)),)


async def test_it_answers_what_the_algorithm_says(advisor: ProcessAdvisor) -> None:
    """spec/tuning#algorithms: the same as in this process, whoever computes it, and as often as it is
    asked."""
    answer = await advisor.suggest(spec(), SEEN, 3, 7)
    assert answer == algorithm_for(Algorithm.RANDOM_SEARCH).suggest(spec(), SEEN, 3, 7)
    assert await advisor.suggest(spec(), SEEN, 3, 7) == answer
    assert pid_of(advisor) != os.getpid()
    lags = Curve(2, (Measurement(((METRIC, 0.1),), 1),), is_over=False)
    others = [Curve(n, (Measurement(((METRIC, 0.9),), 1),), is_over=True) for n in range(3, 9)]
    verdict, other = await advisor.should_stop(spec(), [*others, lags], [2, 3])
    assert verdict.should_stop
    assert verdict.why
    assert not other.should_stop
    expected = await advisor.outlook(spec(Algorithm.DEFAULT), SEEN, ["x"])
    assert expected == outlook(spec(Algorithm.DEFAULT), SEEN, ["x"]) and "so far" in expected.reason


async def test_a_suggestion_waits_for_one_outlook_at_most(advisor: ProcessAdvisor) -> None:
    looks = [asyncio.create_task(advisor.outlook(spec(), SEEN, ["x"])) for _ in range(9)]
    await asyncio.sleep(0)
    await advisor.suggest(spec(), SEEN, 1, 7)
    assert sum(look.done() for look in looks) <= 1
    await asyncio.gather(*looks)


@pytest.mark.parametrize("noticed", [True, False], ids=["noticed", "in-this-moment"])
async def test_an_idle_process_that_was_killed_is_started_anew(
    advisor: ProcessAdvisor, noticed: bool
) -> None:
    """docs/adr/0018: the suggestion is computed again, and is the same; nobody is told of the loss."""
    before = await advisor.suggest(spec(), SEEN, 2, 7)
    idle = advisor._process  # pyright: ignore[reportPrivateUsage] # the one that is to be killed
    assert idle is not None
    os.kill(idle.pid, signal.SIGKILL)
    if noticed:
        # By now the loop has closed its pipes: uvloop refuses to write to them with RuntimeError.
        await idle.wait()
    assert await advisor.suggest(spec(), SEEN, 2, 7) == before
    assert pid_of(advisor) != idle.pid


async def test_a_computation_that_fails_is_told_and_the_process_goes_on(
    advisor: ProcessAdvisor,
) -> None:
    nothing = Parameter("x", ParameterType.DISCRETE)
    broken = StudySpec((nothing,), spec().metrics, Algorithm.RANDOM_SEARCH)
    with pytest.raises(AdvisorFailed):
        await advisor.suggest(broken, (), 1, 7)
    running = pid_of(advisor)
    await advisor.suggest(spec(), SEEN, 1, 7)
    assert pid_of(advisor) == running


async def test_an_interrupt_at_the_terminal_is_not_for_it(advisor: ProcessAdvisor) -> None:
    """A Ctrl-C is the service's to take."""
    before = await advisor.suggest(spec(), SEEN, 1, 7)
    running = pid_of(advisor)
    os.kill(running, signal.SIGINT)
    assert await advisor.suggest(spec(), SEEN, 1, 7) == before
    assert pid_of(advisor) == running


async def test_closing_ends_the_process_and_what_is_asked_then_fails(
    advisor: ProcessAdvisor,
) -> None:
    await advisor.suggest(spec(), SEEN, 1, 7)
    running = pid_of(advisor)
    await advisor.close()
    assert not is_alive(running)
    with pytest.raises(AdvisorFailed, match="the service is stopping"):
        await advisor.suggest(spec(), SEEN, 1, 7)
    await advisor.close()


# --- processes that misbehave, played by scripts ---


def played(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """The advisor's process is this script from now on, which has the frames of calls to read."""
    whole = textwrap.dedent(
        """
        import os, sys
        from trainshed.studies.advisor_process import HEAD, frame
        from trainshed.studies.port import Proposals
        """
    ) + textwrap.dedent(script)
    real = asyncio.create_subprocess_exec

    async def other(program: str, *arguments: str, **how: Any) -> asyncio.subprocess.Process:
        assert arguments == ("-P", "-m", "trainshed.studies.advisor_process", str(os.getpid()))
        return await real(program, "-c", whole, **how)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", other)


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        ('HEAD.pack(False, 2) + b"{]"', "makes no sense"),
        ("frame(Proposals(()))[:7]", "its process ended"),
    ],
)
async def test_what_is_no_answer_is_a_failure_and_its_process_is_replaced(
    advisor: ProcessAdvisor, monkeypatch: pytest.MonkeyPatch, answer: str, cause: str
) -> None:
    call = "sys.stdin.buffer.read(HEAD.unpack(sys.stdin.buffer.read(HEAD.size))[1])"
    played(monkeypatch, f"{call}\nos.write(1, {answer})")
    for _ in range(2):
        with pytest.raises(AdvisorFailed, match=cause):
            await advisor.suggest(spec(), SEEN, 1, 7)


async def test_files_of_the_working_directory_are_no_libraries(
    advisor: ProcessAdvisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service may be started where a user's program lies."""
    (tmp_path / "msgspec.py").write_text("raise SystemExit")
    monkeypatch.chdir(tmp_path)
    assert (await advisor.suggest(spec(), SEEN, 1, 7)).parameters


async def test_one_that_takes_too_long_is_ended(
    advisor: ProcessAdvisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next call gets a new one."""
    monkeypatch.setattr(client, "_LONGEST", 0.2)
    played(monkeypatch, "sys.stdin.buffer.read()")
    for _ in range(2):
        with pytest.raises(AdvisorFailed, match="no answer within"):
            await advisor.suggest(spec(), SEEN, 1, 7)
        assert advisor._process is None  # pyright: ignore[reportPrivateUsage] # nothing else shows it


async def test_a_caller_who_gives_up_does_not_leave_his_answer_to_the_next(
    advisor: ProcessAdvisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half an exchange leaves the stream in no known state: the process is ended."""
    played(
        monkeypatch,
        """
        while head := sys.stdin.buffer.read(HEAD.size):
            body = sys.stdin.buffer.read(HEAD.unpack(head)[1])
            if b'"seed":1' not in body:
                os.write(1, frame(Proposals((), exhausted=True)))
        """,
    )
    await advisor.suggest(spec(), SEEN, 1, 2)
    waits = asyncio.create_task(advisor.suggest(spec(), SEEN, 1, 1))
    await asyncio.sleep(0)
    waits.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waits
    assert (await advisor.suggest(spec(), SEEN, 1, 2)).exhausted


async def test_an_idle_process_is_ended(
    advisor: ProcessAdvisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/adr/0018: it weighs nothing while no study asks; the end of its input ends it."""
    monkeypatch.setattr(client, "_IDLE", 0.01)
    await advisor.suggest(spec(), SEEN, 1, 7)
    running = advisor._process  # pyright: ignore[reportPrivateUsage] # nothing else shows it
    assert running is not None and await running.wait() == 0
    assert (await advisor.suggest(spec(), SEEN, 1, 7)).parameters


# --- the process itself ---


def test_what_libraries_print_does_not_get_among_the_answers() -> None:
    """Whatever writes to standard output, by Python or by the descriptor, writes to standard error."""
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
    call = frame(SuggestCall(spec(), SEEN, 1, 7))

    done = subprocess.run(
        (sys.executable, "-c", talking, str(os.getpid())),
        input=call + call,
        capture_output=True,
        timeout=60,
        check=False,
    )
    answers, errors = done.stdout, done.stderr
    head = HEAD.size
    failed, length = HEAD.unpack(answers[:head])
    assert not failed
    assert answers == answers[: head + length] * 2
    assert errors.count(b"hello from a library") == errors.count(b"and from its C code") == 2


def test_importing_the_room_loads_no_numpy() -> None:
    """The service imports the port and the registry; numbers are for the process that suggests."""
    code = (
        "import sys, trainshed.studies, trainshed.studies.port, trainshed.studies.advisor_process;"
        "sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


async def test_several_at_once_are_answered_one_after_the_other(advisor: ProcessAdvisor) -> None:
    asking = [advisor.suggest(spec(), SEEN, 1, seed) for seed in range(5)]
    answers = await asyncio.gather(*asking)
    random = algorithm_for(Algorithm.RANDOM_SEARCH)
    assert answers == [random.suggest(spec(), SEEN, 1, seed) for seed in range(5)]
