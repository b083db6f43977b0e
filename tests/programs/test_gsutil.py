"""The gsutil of jobs beside the real one, command by command: what each prints, exits with, and leaves in
bucket and directory.

Each program has a bucket and a directory of its own, alike before the first command. What only the words of
an error say may differ where ours tell more; their last line is compared where it is gsutil's own.
"""

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.e2e.running import given_by_env, running
from trainshed import gsutil

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(not shutil.which("gsutil"), reason="the real gsutil is not installed"),
]

_OURS = str(Path(gsutil.__path__[0]) / "bin" / "gsutil")
_FILES = (
    *("data/a.csv", "data/deep/b.csv", "data/deep/er/c.csv", "data/notes.txt"),
    *("top.txt", "sp ace.txt", "[x].txt"),
)
_COMMANDS = """
cp top.txt gs://B/x
cp top.txt gs://B/dir/
cp top.txt gs://B/dir
cp -r data gs://B
cp -r data gs://B/new
cp -r data gs://B/new
cp -r data/ gs://B/slash
cp -r data/* gs://B/star
cp data/*.csv gs://B/flat
cp data gs://B/nodir
cp missing.txt gs://B/x
cp gs://B/nothing* .
cp top.txt data/a.csv gs://B/two
cp top.txt data/a.csv gs://B/two/
-m cp -r data top.txt gs://B/many
cp gs://B/x copy.txt
cp gs://B/data/* out1
cp gs://B/data/*.csv back.csv
cp -r gs://B/data out2
cp -r gs://B/data .
cp -r gs://B/data/* out1
cp gs://B/data/** flatout
ls gs://B
ls gs://B/data
ls gs://B/data/
ls -r gs://B/data
ls gs://B/nothing
ls gs://B/**.csv
ls -d gs://B/data*
mv gs://B/x gs://B/y
mv gs://B/data gs://B/moved
mv gs://B/moved/*.csv gs://B/mcsv/
cp -n top.txt gs://B/y
cp gs://B/y gs://B/z
cp -r gs://B/new gs://B/newer
cp -r gs://B/new/* gs://B/newest/
rsync data gs://B/rs
rsync -r data gs://B/rs
rsync -r -d data/deep gs://B/rs
rsync -r gs://B/rs rsout
rm gs://B/nothing
rm gs://B/z
rm gs://B/rs/*.csv
rm gs://B/rs/**
rm -r gs://B/new
-q stat gs://B/y
stat gs://B/nothing
cat gs://B/y
cat gs://B/nope
du -s gs://B/moved
cp 'sp ace.txt' gs://B/
cp gs://B/moved/notes.txt -
cp -r data/empty gs://B/empty
ls gs://B/**
cp onlyone
ls gs://Not_A_Bucket/
rb gs://B
rm -r gs://B
ls gs://B
""".strip().splitlines()
_OWN_WORDS = ("rb gs://B",)
"""Of these ours says what to do as well."""


@dataclass(frozen=True, slots=True)
class Tool:
    """One of the two programs: `bucket` and `directory` are its own."""

    program: str
    bucket: str
    directory: Path
    environ: dict[str, str]

    def run(self, line: str) -> tuple[int, str, str]:
        """Exit status, standard output, the last line of its errors; the bucket is called B."""
        arguments: list[str] = []
        for word in shlex.split(line):
            if "*" in word and "://" not in word:
                # As a shell would have it.
                found = (path.relative_to(self.directory) for path in self.directory.glob(word))
                arguments += sorted(map(str, found))
            else:
                arguments.append(word.replace("gs://B", f"gs://{self.bucket}"))
        done = subprocess.run(
            [self.program, *arguments],
            cwd=self.directory,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        last = done.stderr.strip().splitlines()[-1:] if done.returncode else []
        told = "" if line in _OWN_WORDS else "".join(last)
        return done.returncode, self._plain(done.stdout), self._plain(told)

    def files(self) -> dict[str, str]:
        """What lies in the directory: contents by name."""
        found = (path for path in self.directory.rglob("*") if path.is_file())
        return {str(path.relative_to(self.directory)): path.read_text() for path in found}

    def objects(self) -> tuple[int, str]:
        """What lies in the bucket, as ours tells it of both: the real one takes seconds to start."""
        status, told, _ = replace(self, program=_OURS).run("ls gs://B/**")
        return status, told

    def _plain(self, text: str) -> str:
        return text.replace(self.bucket, "B")


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Tool, Tool]]:
    place = tmp_path_factory.mktemp("gsutil")
    with pytest.MonkeyPatch.context() as patch:
        # Ours says nobody's name outside of a job, where the replica's endpoint would say it.
        patch.setenv("TRAINSHED_ANONYMOUS_STORAGE", "true")
        with running(place / "service") as service:
            environ = {**os.environ, **given_by_env(service)}
            made = [
                Tool(program, f"beside-{name}", _laid_out(place / name), environ)
                for name, program in (("ours", _OURS), ("real", shutil.which("gsutil") or ""))
            ]
            for tool in made:
                assert made[0].run(f"mb gs://{tool.bucket}")[0] == 0
            yield made[0], made[1]


def test_each_command_does_and_says_what_the_real_one_does(tools: tuple[Tool, Tool]) -> None:
    ours, real = tools
    for line in _COMMANDS:
        assert ours.run(line) == real.run(line), line
        assert ours.files() == real.files(), line
        assert ours.objects() == real.objects(), line


def _laid_out(directory: Path) -> Path:
    for name in _FILES:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(name)
    for name in ("data/empty", "out1", "out2", "flatout", "rsout"):
        (directory / name).mkdir()
    return directory
