"""An attack setup whose programs are forked from a preloader of their project (docs/warm-starts.md). The
preloader has imported NumPy.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.hostile.attack_setup import BUCKETS, OTHER, OWN, PROGRAMS, STAGING, AttackSetup, parent_of
from tests.e2e.packages import package_job, source_package
from tests.e2e.processes import children, command_line
from trainshed.core.launch import WARM_LABEL
from trainshed.replica.preloader import START
from trainshed.replica.supervisor.journal import Entries

SERVICE = (
    # Like a command, it imports nothing from the working directory, which may be an installer's.
    "import sys; sys.path.remove('');"
    "import msgspec; from trainshed.runtimes import families;"
    "msgspec.structs.force_setattr(families.FAMILIES[0], 'preloads', ('numpy',));"
    "from trainshed.__main__ import main; main()"
)
"""A service whose smallest runtime preloads a module, like PyTorch's runtime."""
_READY_SECONDS = 60.0


FORKED = range(4, 10)
"""The process ID of a forked program in its namespace. Other programs have a smaller one."""


@dataclass
class WarmAttackSetup(AttackSetup):
    """The setup's programs start warm. `uploaded`: programs in their project's bucket, as (project, program).
    `jobs`: all submitted jobs.
    """

    labels: dict[str, str] = field(default_factory=dict[str, str])
    uploads: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    jobs: list[str] = field(default_factory=list[str])

    def submit(self, project: str, program: str, *arguments: str, **environ: str) -> str:
        """Upload it as a package, because only modules start warm."""
        return self._submit(project, program, (PROGRAMS / f"{program}.py").read_text(), arguments, environ)

    def open(self) -> None:
        """Create both projects' preloaders with programs that start cold."""
        until = time.monotonic() + _READY_SECONDS
        for project in (OWN, OTHER):
            while True:
                job = self._submit(project, "opener", "", (), {})
                self.service.finish(job, 60)
                (beginning,) = self.beginnings(job)
                if "started warm" in beginning:
                    break
                assert "being imported" in beginning and time.monotonic() < until, beginning
                time.sleep(0.2)
        self.jobs.clear()
        # A fork of the attacker's own preloader, for another user's job.
        self.service.finish(self.submit(OWN, "victim", self.secret(), "fail"), 60)

    def target(
        self, victim: list[int], other: str, endpoint: str, abstract: str, at_home: Path | None
    ) -> dict[str, Any]:
        """Include the preloaders: their processes and their sockets."""
        preloaders, sockets = self.preloaders(), self.sockets()
        target = super().target(victim, other, endpoint, abstract, at_home)
        assert len(preloaders) >= 2, "there is nothing to be attacked"
        assert any("preloader" in path for path in sockets), sockets
        target["preloaders"] = self.numbers(preloaders)
        target["sockets"] = sockets
        return target

    def processes(self, job: str, mark: str) -> list[int]:
        """Return the processes below its shim: a fork has the command line and variables of its preloader."""
        uid = self.service.call("GET", f"/trainshed/v1/jobs/{job}")["uid"]
        shim, _ = Entries(str(self.service.data / "slots" / uid / "1" / "workerpool0-0")).shim
        return children(shim)

    def preloaders(self) -> list[int]:
        return [pid for pid in children(self.service.pid) if START in command_line(pid)]

    def sockets(self) -> list[str]:
        """Return paths in the attacker's view of the machine."""
        return [str(path) for path in self.service.data.rglob("*") if path.is_socket()]

    def beginnings(self, job: str) -> list[str]:
        """Return the timeline's description of how each program started."""
        entries = self.service.call("GET", f"/trainshed/v1/jobs/{job}/timeline")["entries"]
        return [entry["message"] for entry in entries if entry["kind"] == "warm_start"]

    def _submit(
        self, project: str, program: str, text: str, arguments: tuple[str, ...], environ: dict[str, str]
    ) -> str:
        bucket = STAGING[1] if project == OTHER else BUCKETS[project]
        name = f"{program}/pkg-1.0.tar.gz"
        if (project, program) not in self.uploads:
            self.service.put(bucket, name, source_package(text))
            self.uploads.add((project, program))
        body = package_job(f"gs://{bucket}/{name}")
        package = body["jobSpec"]["workerPoolSpecs"][0]["pythonPackageSpec"]
        package["args"] = list(arguments)
        package["env"] = [{"name": name, "value": value} for name, value in environ.items()]
        body |= {"displayName": program, "labels": {WARM_LABEL: "on"}}
        job: str = self.service.call("POST", parent_of(project), body)["name"]
        self.jobs.append(job.rsplit("/", 1)[1])
        return self.jobs[-1]
