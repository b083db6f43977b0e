"""The options of `trainshed local-run`."""

import os
from pathlib import Path

import click

from trainshed.cli.no_service import refuses_service
from trainshed.cli.requirements import split_requirements
from trainshed.cli.sdist import PackagingError
from trainshed.serve.settings import SettingsError, load


@click.command(
    name="local-run",
    short_help="Run one program as a replica would, without a service.",
    epilog="Example: trainshed local-run --executor-image-uri pytorch --script train.py -- --epochs 3",
)
@click.option(
    "--executor-image-uri",
    "image",
    default="",
    metavar="URI",
    help="Prebuilt image, your own, or a runtime such as tensorflow=2.11. Default: scikit-learn.",
)
@click.option(
    "--script",
    default="",
    metavar="FILE",
    help="Python file or Bash script to run.",
)
@click.option(
    "--python-module",
    "module",
    default="",
    metavar="MODULE",
    help="Python module to run, such as trainer.task.",
)
@click.option(
    "--local-package-path",
    "--work-dir",
    "directory",
    type=click.Path(path_type=Path),
    default=Path(),
    metavar="DIR",
    help="Directory of the program; paths are relative to it. Default: the current one.",
)
@click.option(
    "--requirements",
    multiple=True,
    metavar="LIST",
    help="Requirements besides requirements.txt or setup.py, separated by commas.",
)
@click.option(
    "--extra-packages",
    multiple=True,
    metavar="LIST",
    help="Package archives to install, separated by commas.",
)
@click.option(
    "--extra-dirs",
    multiple=True,
    metavar="LIST",
    help="Further directories of the program to copy, separated by commas.",
)
@click.option(
    "--env",
    multiple=True,
    metavar="NAME=VALUE",
    help="Environment variable, repeatable. $(secret:NAME) in it is a secret.",
)
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="NAME=VARIABLE",
    help="Take $(secret:NAME) from this environment variable.",
)
@click.option(
    "--machine-type",
    default="n1-standard-4",
    show_default=True,
    help="Machine type whose memory limit and processors it gets.",
)
@click.option("--gpu", is_flag=True, help="Give the program a GPU, if there is one.")
@click.option(
    "--base-output-dir",
    "output",
    default="",
    metavar="gs://PATH",
    help="Output directory: sets AIP_MODEL_DIR and its siblings.",
)
@click.option("--service-account", default="", help="Service account of the program's credentials.")
@click.option("--project", help="Project that it belongs to. Default: trainshed.")
@click.option(
    "--isolation",
    help="Isolation level: own-user, root, user or session. Default: the strongest.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Data directory whose buckets it sees. Default: ~/.trainshed.",
)
@click.option(
    "--cache",
    type=click.Path(path_type=Path),
    help="Directory of built runtimes. Default: ~/.cache/trainshed.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="TOML file of settings, as for `trainshed up`.",
)
@click.option("--keep", is_flag=True, help="Keep the program's files and print their directory.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGS]...")
@refuses_service(
    "The program runs on this machine, without a service; as a job of one: trainshed run.",
    *("--url", "--token", "--ca"),
)
def command(
    *,
    image: str,
    script: str,
    module: str,
    directory: Path,
    requirements: tuple[str, ...],
    extra_packages: tuple[str, ...],
    extra_dirs: tuple[str, ...],
    env: tuple[str, ...],
    secrets: tuple[str, ...],
    machine_type: str,
    gpu: bool,
    output: str,
    service_account: str,
    project: str | None,
    isolation: str | None,
    data: Path | None,
    cache: Path | None,
    config: Path | None,
    keep: bool,
    arguments: tuple[str, ...],
) -> None:
    """Run one program in the environment that a replica of a job would have: runtime or image, packages,
    variables, limits, buckets, credentials. No service is needed, and nothing is stored.

    Its output is ours, line by line. Ctrl-C asks it to stop, and once more kills it. The exit status is the
    program's, 128 and the signal's number if it died of one, 125 if it could not be run.
    """
    from trainshed.serve.local_run.job import default_image
    from trainshed.serve.local_run.launch import NOT_RUN, run, tell
    from trainshed.serve.local_run.request import (
        LocalRunRequest,
        NotRun,
        check,
        read_env,
        read_secrets,
    )

    if script and module:
        raise click.UsageError("Give --script or --python-module, not both.")
    try:
        settings = load(
            config, {"data": data, "cache": cache, "project": project, "isolation": isolation}
        )
        request = LocalRunRequest(
            image=image or default_image(),
            directory=directory.resolve(),
            script=script.removeprefix("./"),
            module=module,
            arguments=arguments,
            requirements=tuple(split_requirements(requirements)),
            extra_packages=tuple(directory / name for name in _split(extra_packages)),
            extra_dirs=tuple(name.rstrip("/") for name in _split(extra_dirs)),
            env=read_env(env),
            secrets=read_secrets(secrets, os.environ),
            machine_type=machine_type,
            gpu=gpu,
            output=output,
            service_account=service_account,
            keep=keep,
        )
        check(request, (Path.home().resolve(), Path("/"), Path("/tmp").resolve()))
        status = run(request, settings)
    except (NotRun, PackagingError, SettingsError) as failure:
        tell(f"Error: {failure}")
        status = NOT_RUN
    raise SystemExit(status)


def _split(texts: tuple[str, ...]) -> list[str]:
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]
