"""`trainshed run`: submits a program of this machine, or the job in a file, and follows it until it
finishes."""

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from trainshed.cli.client import Client
from trainshed.cli.connection import (
    PROJECT,
    REGION,
    Endpoint,
    connection_options,
    find,
    place_options,
    with_defaults,
)
from trainshed.cli.jobs.references import find_job, job_path
from trainshed.cli.jobs.views import JobView
from trainshed.cli.output import output_format, print_data
from trainshed.cli.processes import own_service
from trainshed.cli.run import job_files, program, repeats, request, sending
from trainshed.cli.run.job_files import JobFile, JobFileError
from trainshed.cli.run.program import Program
from trainshed.cli.run.source_files import PackagingError, split_requirements
from trainshed.cli.text.colours import one_line
from trainshed.cli.text.tables import first_few, pairs
from trainshed.core import terminals
from trainshed.core.copies import Run, Sweep, custom_job, tuning_job
from trainshed.core.names import Api
from trainshed.core.resource_summary import ResourceSummary, summarize_resource
from trainshed.core.snippets import SnippetForm, snippet
from trainshed.core.units import Nanos
from trainshed.wire.trainshed_v1.capacity import Explanation
from trainshed.wire.trainshed_v1.jobs import Status
from trainshed.wire.trainshed_v1.record import read

_MAX_LISTED = 6
"""Maximum number of files, and of requirements, that the printed plan of a job lists."""
_EXAMPLE = "trainshed run task.py --image pytorch -- --epochs 3"


class ProgramCommand(click.Command):
    """A command that treats the words after `--` as the arguments of a program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the words after `--` into `ctx.meta` and parse the others."""
        own, theirs = list(args), list[str]()
        if "--" in own:
            index = own.index("--")
            own, theirs = own[:index], own[index + 1 :]
        ctx.meta["trainshed.arguments"] = tuple(theirs)
        try:
            return super().parse_args(ctx, own)
        except click.NoSuchOption as wrong:
            message = wrong.format_message()
            if advice := request.machine_advice(wrong.option_name, args):
                message = f"No such option {wrong.option_name!r}. {advice}"
            elif not theirs:
                message += f" To pass it to your program, put it after --: {_EXAMPLE}"
            raise click.UsageError(message, ctx) from None


@click.command(cls=ProgramCommand, epilog=f"Example: {_EXAMPLE}")
@click.argument("path", required=False, type=click.Path(path_type=Path), metavar="[PATH]")
@click.option(
    "-f",
    "--file",
    type=click.File("r", encoding="utf-8"),
    help="Job file of the Vertex or ml API in place of PATH; - reads standard input.",
)
@click.option(
    "--image",
    metavar="IMAGE",
    help="Framework (pytorch, tensorflow=2.11) or image URI. Default: scikit-learn.",
)
@click.option(
    "--module", metavar="MODULE", help="Module or file to run, if PATH is a directory or a package."
)
@click.option(
    "--requirements",
    multiple=True,
    metavar="LIST",
    help="Packages to install, or files that list them, separated by commas. The requirements.txt next to "
    "PATH is also used.",
)
@click.option(
    "--replicas", type=click.IntRange(1, 100_000), default=1, help="Number of replicas. Default: 1."
)
@click.option(
    "--machine-type",
    help=f"Machine type of each replica. Default: {request.DEFAULT_MACHINE}; with --gpus, a type with "
    "these GPUs.",
)
@click.option("--gpus", type=click.IntRange(0), default=0, help="Number of GPUs of each replica. Default: 0.")
@click.option(
    "--accelerator", metavar="TYPE", help="GPU type, such as NVIDIA_L4. Default: a type that your nodes have."
)
@click.option(
    "--env",
    multiple=True,
    metavar="NAME=VALUE",
    help="Environment variable. $(secret:NAME) in its value is replaced by the secret.",
)
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="NAME=SECRET",
    help="Environment variable NAME with the value of the secret SECRET.",
)
@click.option(
    "--output",
    metavar="gs://PATH",
    help="Directory for models and checkpoints. Default: a new directory for the job.",
)
@click.option("--name", metavar="NAME", help="Name of the job. Default: the name of the program.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Label of the job.")
@click.option(
    "--notify",
    multiple=True,
    metavar="TARGET",
    help="Target of notifications, from the service's settings, for when the job ends or stalls.",
)
@click.option(
    "--after",
    multiple=True,
    metavar="JOB",
    help="Start after this job has succeeded. JOB:finished: after any end of the job.",
)
@click.option("--timeout", metavar="TIME", help="Maximum running time, such as 2h. Default: 7 days.")
@click.option("--spot", is_flag=True, help="Run a spot job: jobs without --spot may preempt it.")
@click.option("--shell", "web_access", is_flag=True, help="Allow shells in the job's replicas.")
@click.option(
    "--notebook", is_flag=True, help="Run JupyterLab in place of PATH; a link opens it in the browser."
)
@click.option(
    "--port",
    "ports",
    multiple=True,
    metavar="NAME=PORT",
    help="Web page of the program: a link named NAME opens the server on this port of the primary replica.",
)
@click.option("--service-account", help="Service account whose credentials the program has.")
@click.option(
    "--tune",
    multiple=True,
    metavar="NAME=VALUES",
    help="Tune this parameter. Each trial receives it as --NAME: lr=1e-4..1e-1:log, layers=1..8, "
    "batch=16,32,64.",
)
@click.option(
    "--minimize", metavar="METRIC", help="Minimize this metric, which trials report or print, such as loss."
)
@click.option("--maximize", metavar="METRIC", help="Maximize this metric, such as val_accuracy.")
@click.option("--trials", type=click.IntRange(1, 10_000), help="Number of trials. Default: 20.")
@click.option("--parallel", type=click.IntRange(1, 1000), help="Concurrent trials. Default: 4.")
@click.option(
    "--array",
    metavar="INDICES",
    help="Run the program once for each index: 0-499, 0-20:2 or 1,4,7. 0-499%20: 20 at a time.",
)
@click.option("--schedule", metavar="CRON", help='Run the program by a schedule: "0 2 * * *".')
@click.option("--timezone", metavar="ZONE", help="Time zone of --schedule: Europe/Berlin. Default: UTC.")
@click.option("--schedule-name", metavar="NAME", help="Name of the schedule. Default: the job's.")
@place_options("job")
@click.option(
    "--api",
    type=click.Choice([api.value for api in Api]),
    help="API of the job file. Default: detect the API from the file.",
)
@click.option(
    "--as",
    "form_of",
    type=click.Choice([form.value for form in SnippetForm]),
    help="Print the job as code or a command for this client; submit nothing.",
)
@click.option("--dry-run", is_flag=True, help="Print where and when the job would run; submit nothing.")
@click.option(
    "--watch/--detach",
    default=None,
    help="Whether to follow the job until it finishes. Default: follow on a terminal.",
)
@click.option(
    "--local",
    is_flag=True,
    help="Run the job on a temporary service of this machine, which ends with the job.",
)
@output_format("text", "Output as text, or JSON for programs.")
@connection_options
@click.pass_obj
@click.pass_context
def command(
    context: click.Context,
    now: Callable[[], Nanos],
    *,
    url: str | None,
    token: str | None,
    data: Path | None,
    ca: str | None,
    local: bool,
    **options: Any,
) -> None:
    """Run a program as a job: a Python file, a directory, a package, an image, or a job file.

    PATH is the program. A file is packed with the local modules that it imports, a directory with all its
    files. The program runs in its own working directory, and its requirements are installed. Without PATH,
    the image of --image runs unchanged. The program receives the arguments after --.

    The command prints its plan before it submits the job. The exit status is 0 if the job succeeded (or was
    submitted), 1 if it failed, and 130 after Ctrl-C (the job continues). With --dry-run it is 0 if the job
    would start now, 3 if it would wait or does not fit, and 1 if it would be rejected.

    With --array, each job has its index in TRAINSHED_ARRAY_INDEX, and in place of {index} in arguments,
    variables and --output. If some jobs fail, the others continue. Follow, describe and retry all together:
    trainshed pipelines.

    With --local no service is needed: the job runs in a temporary directory, which is then deleted, or in
    that of --data, which is kept. Ctrl-C cancels the job.
    """
    options |= {"project": context.meta[PROJECT], "region": context.meta[REGION]}
    options["repeats"] = repeats.read(options, local=local)
    if not local:
        _run(context, now, find(url, token, data, ca), options)
        return
    _require_own_service(options, {"--url": url, "--token": token, "--ca": ca})
    with own_service(data) as endpoint:
        own = {"watch": True, "is_temporary": data is None}
        try:
            _run(context, now, endpoint, options | own, is_own=True)
        except KeyboardInterrupt:
            click.echo(
                "Cancelling the job. Its program has the grace period of the service to end.", err=True
            )
            raise SystemExit(130) from None


def _require_own_service(options: dict[str, Any], address: dict[str, str | None]) -> None:
    """Raise click.UsageError if the user specified an option that cannot be combined with --local."""
    wrong = [name for name, value in address.items() if value is not None]
    wrong += ["--detach"] if options["watch"] is False else []
    wrong += ["--as"] if options["form_of"] else []
    if wrong:
        raise click.UsageError(
            f"--local excludes {', '.join(wrong)}, because its service ends with this command. Omit these "
            "options, or --local."
        )


def _run(  # noqa: PLR0912  the steps of one command
    context: click.Context,
    now: Callable[[], Nanos],
    endpoint: Endpoint,
    options: dict[str, Any],
    *,
    is_own: bool = False,
) -> None:
    """Submit a job, and follow it. `is_own`: whether the service stops together with this command."""
    arguments: tuple[str, ...] = context.meta["trainshed.arguments"]
    form: str = options["form"]
    client = endpoint.client()
    known = endpoint.project and endpoint.region and endpoint.bucket
    elsewhere = (options["project"] or endpoint.project) != endpoint.project
    if not known or elsewhere:
        endpoint = with_defaults(endpoint, options["project"])
    place = {"project": endpoint.project, "region": options["region"] or endpoint.region}
    packed: Program | None = None
    options["labels"] = (*options["labels"], *_after_label(client, options, place["project"]))
    needs_bucket = options["file"] is None or options["repeats"]
    if needs_bucket and (elsewhere or endpoint.buckets is None):
        sending.require_bucket(endpoint, place)
    if options["file"] is not None:
        job = _job_from_file(context, options, arguments, place, now())
    else:
        job, packed = _job_from_program(endpoint, options, arguments, now())
    where = {"api": job.api.value, "project": place["project"], "location": place["region"]}
    answer: dict[str, Any] = client.post("/trainshed/v1/jobs:explain", {**where, "job": job.job})
    wanted = summarize_resource(job.job)
    plan = read(answer, Explanation)
    for line in _plan_lines(plan, wanted, packed):
        click.echo(line, err=not options["dry_run"] or form == "json")
    if options["dry_run"]:
        if form == "json":
            print_data(answer)
        raise SystemExit(0 if plan.admitted else sending.WOULD_WAIT)
    sending.upload(endpoint, packed.packages if packed else ())
    if options["form_of"]:
        form_of = SnippetForm(options["form_of"])
        click.echo(snippet(form_of, job.api, place["project"], place["region"], job.job), nl=False)
        return
    if options["repeats"]:
        root = f"gs://{endpoint.bucket}/pipelines"
        wanted_job = repeats.pipeline_job(job, options["repeats"], root)
        repeats.submit(client, now, wanted_job, place, options)
        return
    name = sending.create(client, job, place)
    submitted = client.get(job_path(name))
    if form == "json":
        print_data(submitted)
    view = JobView.parse(submitted)
    for page, link in (view.pages or {}).items():
        click.echo(f"To open {page} in a browser once it runs: {link}", err=True)
    if is_own and options["is_temporary"]:
        results = [("Outputs", "were deleted with the service. To keep them, use --data DIRECTORY")]
    else:
        uid = None if is_own else str(submitted["uid"])
        results = _results(endpoint, wanted.output, uid)
    follow_on(
        client,
        now,
        view,
        follow=options["watch"],
        is_named=form == "json",
        job_continues=not is_own,
        known=(*plan.notices, *plan.warnings),
        results=pairs([] if form == "json" else results),
    )


def _after_label(client: Client, options: dict[str, Any], project: str) -> Iterator[str]:
    """Yield the label for the jobs of --after, or nothing without this option."""
    if entries := request.read_after(options["after"]):
        uids = [str(find_job(client, job, project)["uid"]) for job, _ in entries]
        yield request.after_label(uids, [condition for _, condition in entries])


def _plan_lines(plan: Explanation, wanted: ResourceSummary, packed: Program | None) -> Iterator[str]:
    """Yield the lines of the plan: where and when the job would run."""
    facts: list[tuple[str, str | None]] = [("Runs", _program_text(wanted, packed))]
    if packed:
        facts.append(("Files", first_few(packed.files, _MAX_LISTED)))
        facts.append(("Installs", first_few(packed.requirements, _MAX_LISTED)))
    facts.append(("Output", wanted.output))
    yield from pairs([(name, text) for name, text in facts if text])
    yield from sending.explanation(plan)


def follow_on(
    client: Client,
    now: Callable[[], Nanos],
    job: JobView,
    *,
    follow: bool | None,
    is_named: bool,
    job_continues: bool = True,
    known: Sequence[str] = (),
    results: Sequence[str] = (),
) -> None:
    """Print the name of a new job. Then follow the job, or print how to follow it.

    Raises SystemExit unless the job succeeded.

    Args:
        follow: whether to follow the job; None = follow on a terminal
        is_named: whether the name was printed already
        job_continues: whether the job continues after Ctrl-C
        known: lines of the job's log that the user has seen
        results: lines to print after a success
    """
    if not is_named:
        click.echo(job.name)
    if not (sys.stdout and sys.stdout.isatty() if follow is None else follow):
        click.echo(f"To follow it: trainshed jobs watch {job.job_id}", err=True)
        for line in results:
            click.echo(line, err=True)
        return
    # Imported here, because the import is slow and only needed to follow the job.
    from trainshed.cli.jobs import watch

    watch.follow_to_end(
        client, job, now, lines=True, job_continues=job_continues, known=known, results=results
    )


def _results(endpoint: Endpoint, output: str | None, uid: str | None) -> list[tuple[str, str]]:
    """Return lines with the job's output directory and its console page. `uid`: the job's UID, or None if the
    service has stopped, so that no page exists."""
    bucket, _, path = (output or "").removeprefix("gs://").partition("/")
    on_disk = endpoint.buckets / bucket / path if endpoint.buckets and path else None
    page = uid and f"{endpoint.rest}/jobs/{uid}"
    facts = [("Outputs", output), ("On disk", on_disk and str(on_disk)), ("Page", page)]
    return [(name, text) for name, text in facts if text]


def _labels(options: dict[str, Any]) -> dict[str, str]:
    """Return the job's labels, from --label, --notify, --notebook and --port."""
    labels = request.read_labels(options["labels"])
    if options["notify"]:
        from trainshed.core.notifications import LABEL  # Slow import, only needed for --notify.

        labels[LABEL] = "_".join(options["notify"])
    pages = request.read_ports(options["ports"])
    if options["notebook"]:
        pages.insert(0, terminals.page_entry(terminals.NOTEBOOK, ""))
    if pages:
        labels[terminals.PAGES_LABEL] = "_".join(pages)
    return labels


def _job_from_file(
    context: click.Context,
    options: dict[str, Any],
    arguments: tuple[str, ...],
    place: dict[str, str],
    now: Nanos,
) -> JobFile:
    for_files = {
        *("file", "name", "labels", "notify", "ports", "after", "project", "region", "api"),
        *("form_of", "dry_run", "watch", "form", "array", "schedule", "timezone"),
        *("schedule_name", "repeats"),
    }
    extra = [
        f"--{name.replace('_', '-')}" if name != "path" else "PATH"
        for name in options
        if name not in for_files
        and context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    ]
    if extra or arguments:
        listed = ", ".join([*extra, *(["arguments after --"] if arguments else [])])
        raise click.UsageError(
            f"{listed} cannot be combined with a job file, which contains these values itself. Omit them, "
            "or change the file. Allowed with a file are --name, --label, --notify, --port, --after, "
            "--project and --region."
        )
    file = options["file"]
    name = options["name"] or (Path(file.name).stem if file.name not in ("-", "<stdin>") else "job")
    api = Api(options["api"]) if options["api"] else None
    try:
        fields = job_files.read(file.read())
        job_id = f"{job_files.as_id(name)}_{now // 10**6}"
        job = job_files.recognize(fields, api, name, job_id)
    except (JobFileError, UnicodeDecodeError) as failure:
        raise click.ClickException(f"{file.name}: {failure}") from None
    job = job_files.with_region(job, place["region"])
    changed = dict(job.job)
    if options["name"]:
        key = "jobId" if job.api is Api.ML else "displayName"
        changed = {k: v for k, v in changed.items() if k not in ("job_id", "display_name")}
        changed[key] = options["name"]
    if labels := _labels(options):
        changed["labels"] = {**(changed.get("labels") or {}), **labels}
    return JobFile(job.api, changed)


def _job_from_program(
    endpoint: Endpoint, options: dict[str, Any], arguments: tuple[str, ...], now: Nanos
) -> tuple[JobFile, Program | None]:
    path: Path | None = options["path"]
    if options["notebook"] and (path is not None or options["module"] or options["tune"]):
        raise click.UsageError(
            "--notebook runs JupyterLab and no other program. Omit PATH, --module and --tune, and copy "
            "files to the directory of --output (trainshed buckets cp)."
        )
    if path is None and not (options["image"] or options["notebook"]):
        raise click.UsageError(
            f"The program is missing. Specify a file or directory ({_EXAMPLE}), a job file (-f job.yaml), "
            "or your own image (--image localhost/mine:1)."
        )
    packed = None
    if path is not None or options["notebook"]:
        try:
            needed = split_requirements(options["requirements"])
            if path is not None:
                packed = program.pack(path, options["module"], needed)
            else:
                packed = program.notebook(needed)
        except PackagingError as failure:
            raise click.ClickException(str(failure)) from None
    elif options["requirements"] or options["module"]:
        raise click.UsageError(
            "--requirements and --module need PATH, because without it the image runs unchanged. Add "
            "PATH, or omit them."
        )
    image = options["image"] or request.DEFAULT_IMAGE
    name = options["name"] or (packed.name if packed else image.rpartition("/")[2].partition(":")[0])
    env = request.read_pairs(options["env"], "--env")
    env |= {
        variable: f"$(secret:{secret})"
        for variable, secret in request.read_pairs(options["secrets"], "--secret").items()
    }
    gpus, kind = options["gpus"], options["accelerator"]
    node_types: tuple[str, ...] = ()
    if gpus and not kind:  # Request the GPU types of the service's nodes.
        node_types = read(endpoint.client().get("/trainshed/v1/status"), Status).accelerators
    job = custom_job(
        Run(
            name=name,
            image=request.image_uri(image, gpus=gpus > 0),
            machine=request.machine_spec(options["machine_type"], gpus, kind, node_types),
            packages=[sending.package_uri(endpoint.bucket, package) for package in packed.packages]
            if packed
            else None,
            module=packed.module if packed else None,
            args=arguments,
            env=env,
            replicas=options["replicas"],
            labels=_labels(options),
            output=options["output"] or request.output_directory(endpoint.bucket, name, now),
            timeout=request.timeout(options["timeout"]),
            service_account=options["service_account"],
            spot=options["spot"],
            web_access=options["web_access"],
        )
    )
    searching = ("minimize", "maximize", "trials", "parallel")
    if options["tune"]:
        try:
            job = tuning_job(job, _sweep(options))
        except ValueError as fault:
            raise click.UsageError(f"--tune {fault}") from None
    elif unused := [f"--{name}" for name in searching if options[name] is not None]:
        raise click.UsageError(
            f"{', '.join(unused)} need a parameter to tune. Add one, such as --tune lr=1e-4..1e-1:log."
        )
    return JobFile(Api.VERTEX, job), packed


def _sweep(options: dict[str, Any]) -> Sweep:
    metrics = [options[goal] for goal in ("minimize", "maximize") if options[goal]]
    if len(metrics) != 1:
        raise click.UsageError(
            "--tune needs one metric that trials report or print. Add --minimize loss or --maximize accuracy."
        )
    return Sweep(
        parameters=options["tune"],
        metric=metrics[0],
        maximize=bool(options["maximize"]),
        trials=options["trials"] or 20,
        parallel=options["parallel"] or 4,
    )


def _program_text(wanted: ResourceSummary, packed: Program | None) -> str | None:
    """Return the program and its image as text, or None if they are unknown."""
    if not wanted.pools:
        return None
    pool = wanted.pools[0]
    image = pool.image.rpartition("/")[2].removesuffix(":latest")
    return one_line(" on ".join(filter(None, (packed.entry if packed else pool.program, image))))
