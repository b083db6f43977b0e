"""What a local run makes of its options and of a directory, before anything runs (spec/program#local-runs;
facts/packaging#autopackaging)."""

import io
import zipfile
from pathlib import Path

import pytest

from tests.unit.test_runtimes_catalog import Pythons
from trainshed.cli.requirements import read_requirements, requirement, split_requirements
from trainshed.cli.sdist import PackagingError
from trainshed.core.runtime import RuntimeChoice, RuntimeRefusal
from trainshed.core.secrets import SecretRef
from trainshed.runtimes.catalog import LocalCatalog
from trainshed.serve.local_run import job, program_files
from trainshed.serve.local_run.program_files import copy_program
from trainshed.serve.local_run.request import LocalRunRequest, NotRun, check, read_env, read_secrets


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A program as people have it, with what does not belong to it."""
    for name in (
        "trainer/task.py",
        "trainer/deep/rows.csv",
        "trainer/__pycache__/task.cpython-311.pyc",
        "trainer/.git/config",
        "trainer/venv/pyvenv.cfg",
        "data/small.dat",
        "notes.txt",
    ):
        path = tmp_path / "program" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path / "program"


def furnished(directory: Path, request: LocalRunRequest) -> list[str]:
    files = directory.parent / "files"
    copy_program(files, directory, program_files.pack(request).trees, ())
    work = files / "work"
    return sorted(str(path.relative_to(work)) for path in work.rglob("*") if path.is_file())


def test_the_directory_of_the_script_is_there_and_nothing_else(directory: Path) -> None:
    """facts/packaging#autopackaging: the parent of the main executable, and extra directories."""
    request = LocalRunRequest("python", directory, script="trainer/task.py", extra_dirs=("data",))
    assert furnished(directory, request) == [
        "data/small.dat",
        "trainer/deep/rows.csv",
        "trainer/task.py",
    ]


def test_a_script_at_the_top_has_the_whole_directory(directory: Path) -> None:
    """facts/packaging#autopackaging."""
    (directory / "task.py").touch()
    found = furnished(directory, LocalRunRequest("python", directory, script="task.py"))
    assert {"task.py", "notes.txt", "data/small.dat"} <= set(found)
    assert not [name for name in found if "pycache" in name or ".git" in name or "venv" in name]


def test_a_module_of_a_project_is_installed_and_not_copied(directory: Path) -> None:
    """spec/program#local-runs: as a job's package is; the same files are the same package."""
    (directory / "setup.py").write_text(
        "from setuptools import setup\nsetup(name='my-own', version='1.2')"
    )
    request = LocalRunRequest("python", directory, module="trainer.task")
    packed = program_files.pack(request)
    assert packed.trees == ()
    (parcel,) = packed.parcels
    assert parcel.uri.endswith("/my_own-1.2.tar.gz")
    assert program_files.pack(request) == packed
    pool = job.custom_job(request, packed, "python")["jobSpec"]["workerPoolSpecs"][0]
    assert pool["pythonPackageSpec"]["packageUris"] == [parcel.uri]
    assert pool["pythonPackageSpec"]["pythonModule"] == "trainer.task"


def test_a_project_whose_name_is_computed_is_refused_with_a_way_out(directory: Path) -> None:
    """spec/submit#refusals: nothing of the user's is run to find out."""
    (directory / "setup.py").write_text("from setuptools import setup\nsetup(name=''.join('ab'))")
    with pytest.raises(NotRun, match="cannot be told without running it"):
        program_files.pack(LocalRunRequest("python", directory, module="trainer.task"))


def test_requirements_become_a_package_that_needs_them(directory: Path) -> None:
    """facts/packaging#autopackaging: `program_files.txt` and the option."""
    (directory / "requirements.txt").write_text("a==1 # why\n-r more.txt\nb @ https://x/b.whl\n")
    (directory / "more.txt").write_text("c[x] >= 2, \\\n  <3 ; python_version > '3'\n\n# d\n")
    request = LocalRunRequest("python", directory, script="trainer/task.py", requirements=("e",))
    (parcel,) = program_files.pack(request).parcels
    with zipfile.ZipFile(io.BytesIO(parcel.content)) as wheel:
        (metadata,) = [wheel.read(name) for name in wheel.namelist() if name.endswith("METADATA")]
    needed = [line[15:] for line in metadata.decode().splitlines() if line.startswith("Requires")]
    assert [text.replace(" ", "") for text in needed] == [
        "a==1",
        "c[x]>=2,<3;python_version>'3'",
        "b@https://x/b.whl",
        "e",
    ]


def test_requirements_that_cannot_be_kept_are_all_named(tmp_path: Path) -> None:
    """spec/submit#refusals: every offending line."""
    file = tmp_path / "requirements.txt"
    file.write_text("good\n--index-url https://x\n./local.whl\n-r missing.txt\n!\n")
    with pytest.raises(PackagingError) as refused:
        read_requirements(file)
    told = str(refused.value).splitlines()
    assert len(told) == 4
    assert "line 2, '--index-url https://x'" in told[0]
    assert "--extra-packages" in told[1]
    assert "missing.txt cannot be read" in told[2]
    assert "line 5" in told[3]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a --hash=sha256:00", "a"),
        ("git+https://x/y.git@v1#egg=y", "y @ git+https://x/y.git@v1"),
        ("a[b,c]~=1.0", "a[b,c]~=1.0"),
    ],
)
def test_a_requirement_as_metadata_has_it(text: str, kept: str) -> None:
    """facts/packaging#autopackaging."""
    assert requirement(text) == kept


def test_lists_with_commas_keep_what_belongs_together() -> None:
    """facts/packaging#autopackaging: `--requirements=pandas,scipy>=1.3.0`."""
    given = ("pandas,scipy>=1.3,<2", "a[b,c]==1, d")
    assert split_requirements(given) == ["pandas", "scipy>=1.3,<2", "a[b,c]==1", "d"]


def test_a_file_in_a_list_stands_for_what_it_names(tmp_path: Path) -> None:
    """It is no package of that name: somebody else's could be had."""
    listed = tmp_path / "requirements.txt"
    listed.write_text("pandas>=2,<3  # tables\nscipy\n")
    assert split_requirements((f"a,{listed},b",)) == ["a", "pandas>=2,<3", "scipy", "b"]
    with pytest.raises(PackagingError, match=r"none\.txt cannot be read"):
        split_requirements((f"{tmp_path}/none.txt",))


def test_every_path_that_is_wrong_is_named(directory: Path) -> None:
    """spec/submit#refusals."""
    request = LocalRunRequest(
        "python",
        directory,
        script="../task.py",
        extra_dirs=("none",),
        extra_packages=(directory / "p.whl",),
    )
    with pytest.raises(NotRun) as refused:
        check(request, ())
    told = str(refused.value)
    for part in (
        "--script: ../task.py leads out",
        "--extra-dirs: there is no directory none",
        "p.whl",
    ):
        assert part in told
    with pytest.raises(NotRun, match="holds more than a program"):
        check(LocalRunRequest("python", directory, script="trainer/task.py"), (directory,))


def test_a_secret_comes_from_a_variable_and_is_never_told() -> None:
    """spec/program#local-runs: a command line can be read by everybody."""
    environ = {"PASSWORD": "hunter22", "SHORT": "no"}
    assert read_secrets(("db=PASSWORD",), environ) == {SecretRef("db"): "hunter22"}
    with pytest.raises(NotRun) as refused:
        read_secrets(("db=s3cr3t-value", "x=SHORT", "1=PASSWORD", "y"), environ)
    assert len(str(refused.value).splitlines()) == 4
    assert "s3cr3t" not in str(refused.value)


def test_a_variable_has_a_name_and_a_value() -> None:
    """spec/submit#refusals."""
    assert read_env(("A=1=2", "B=")) == (("A", "1=2"), ("B", ""))
    for wrong in ("A", "=1"):
        with pytest.raises(NotRun, match="NAME=VALUE"):
            read_env((wrong,))


@pytest.mark.parametrize(
    ("machine", "kind"),
    [("n1-standard-8", "NVIDIA_TESLA_T4"), ("a2-highgpu-1g", "NVIDIA_TESLA_A100")],
)
def test_a_gpu_goes_with_the_machine(directory: Path, machine: str, kind: str) -> None:
    """spec/queue#capacity: accelerators by machine type."""
    request = LocalRunRequest(
        "python", directory, script="trainer/task.py", machine_type=machine, gpu=True
    )
    pool = job.custom_job(request, program_files.pack(request), "python")["jobSpec"][
        "workerPoolSpecs"
    ][0]
    assert pool["machineSpec"]["acceleratorType"] == kind


def test_a_machine_without_gpus_is_refused(directory: Path) -> None:
    """spec/submit#refusals."""
    request = LocalRunRequest(
        "python", directory, script="trainer/task.py", machine_type="e2-standard-4", gpu=True
    )
    with pytest.raises(NotRun, match="no GPU goes with machine type e2-standard-4"):
        job.custom_job(request, program_files.pack(request), "python")


@pytest.mark.parametrize(
    ("image", "meant"), [("pytroch", "pytorch"), ("tensorflow2=2.11", "tensorflow")]
)
def test_a_misspelt_runtime_is_not_asked_for_as_an_image(image: str, meant: str) -> None:
    """spec/operations#errors: local runs know runtimes by their names."""
    runtimes = job.NamedRuntimes(LocalCatalog(Pythons((3, 11))), image)
    refused = runtimes.for_image(runtimes.uri)
    assert isinstance(refused, RuntimeRefusal) and f"did you mean {meant}?" in refused.reason


def test_a_python_that_is_not_here_is_never_another_one() -> None:
    """Who names a runtime by its own name is not given something near."""
    catalog = LocalCatalog(Pythons((3, 11)))
    found = job.NamedRuntimes(catalog, "python=3.11").for_image("python")
    assert isinstance(found, RuntimeChoice)
    assert found.python_version == "3.11"
    refused = job.NamedRuntimes(catalog, "python=3.99").for_image("python")
    assert isinstance(refused, RuntimeRefusal)
    assert "Python 3.99 cannot be had here; the nearest is python=3.11." in refused.reason
