"""Checks texts in a request: labels, bucket paths, names, arguments, variables.

A function `..._fault` returns the error and the valid form, or "" for a valid text. A function `read_...`
adds errors to the section's faults.
"""

import json
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from trainshed.core import secrets
from trainshed.core.cluster import BYTES_PER_ENDPOINT, MAX_STRING_BYTES, fits_cluster_spec
from trainshed.core.packages import COPY_LABEL
from trainshed.core.requests import Section

T = TypeVar("T")

MAX_LABELS = 64
MAX_LABEL_CHARS = 63
MAX_LABEL_BYTES = 127
MAX_DISPLAY_NAME = 128
MAX_JOB_ID = 128
MAX_TEXT = 100_000
MAX_ENV = 100
MAX_ARGS_CHARS = 100_000
MAX_PACKAGES = 100
MIN_LETTERS = 2
"""A list of single characters with at least this length is treated as a text that Python has split by
mistake."""
MAX_ENV_BYTES = 600_000
"""Maximum bytes of all variables of a program. Linux rejects programs whose variables and arguments exceed 2
MiB."""
MAX_OBJECT_BYTES = 1024
MAX_DURATION = 100 * 366 * 24 * 3600 * 10**9
"""Maximum duration in nanoseconds. It keeps all deadlines within 63 bits."""

_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_MODULE = re.compile(r"[^\W\d][\w-]*(\.[^\W\d][\w-]*)*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MODEL_ID = re.compile(r"[a-z_][a-z0-9_-]{0,62}")
_ALIAS = re.compile(r"[a-z][a-zA-Z0-9-]{0,126}[a-z0-9]")
_JOB_ID = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_ACCOUNT = re.compile(r"[^@\s/]+@[^@\s/]+\.[A-Za-z][A-Za-z0-9-]*")
_ACCOUNT_NUMBER = re.compile(r"\d+")


def bucket_path_fault(uri: str, *, needs_object: bool = False) -> str:
    """Return the error in a path `gs://BUCKET/OBJECT`, such as a part `..` (path traversal). Without
    `needs_object`, the bucket is sufficient."""
    if not uri.startswith("gs://"):
        return f"{uri!r} is not a Cloud Storage path. Use the form gs://BUCKET/PATH."
    bucket, _, name = uri[5:].partition("/")
    if not _BUCKET.fullmatch(bucket) or any(len(part) > 63 for part in bucket.split(".")):
        return (
            f"{bucket!r} in {uri!r} is not a bucket name. It must have 3 to 63 lowercase "
            "letters, digits, dashes, underscores and dots, and start and end with a "
            "letter or digit."
        )
    if needs_object and not name.strip("/"):
        return f"{uri!r} is a bucket without an object. Add the object: gs://{bucket}/PATH."
    if any(part in (".", "..") for part in name.split("/")):
        return f"{uri!r} contains . or .. between slashes. Write the path without it."
    if "\n" in name or "\r" in name or len(name.encode()) > MAX_OBJECT_BYTES:
        return f"the object name in {uri!r} must have at most {MAX_OBJECT_BYTES} bytes and no line break."
    return ""


def job_id_fault(job_id: str) -> str:
    """Return the error in the id of an `ml` job (spec/submit#ml-jobs, facts/limits#ids)."""
    if not job_id:
        return "The job needs an id: letters, digits and underscores, starting with a letter."
    if not _JOB_ID.fullmatch(job_id) or len(job_id) > MAX_JOB_ID:
        return (
            f"{job_id!r} is not a job id. Use at most {MAX_JOB_ID} letters (a-z, A-Z), "
            "digits and underscores, and start with a letter."
        )
    return ""


def form_fault(pattern: re.Pattern[str], text: str, form: str) -> str:
    """Return an error if a text does not match a pattern. `form`: a clause that describes the valid form."""
    return "" if pattern.fullmatch(text) else f"{text!r} is not {form}."


def model_id_fault(model_id: str) -> str:
    """Return the error in the id of a Vertex model (facts/resources#vertex)."""
    return form_fault(
        _MODEL_ID,
        model_id,
        "a model id; it has at most 63 lowercase letters, digits, underscores and dashes, and does not begin "
        "with a digit or dash",
    )


def alias_fault(alias: str) -> str:
    """Return the error in an alias of a model version on Vertex."""
    return form_fault(
        _ALIAS,
        alias,
        "an alias; it has 2 to 128 letters, digits and dashes, begins with a lowercase letter and ends with "
        "one or with a digit",
    )


def module_fault(module: str) -> str:
    if not module:
        return "The Python module to run must be set, for example trainer.task."
    form = "a module name; give it with dots and no .py, as in trainer.task"
    return form_fault(_MODULE, module, form)


def service_account_fault(account: str) -> str:
    if not account or _ACCOUNT_NUMBER.fullmatch(account):
        return ""
    form = "a service account; it must look like NAME@PROJECT.iam.gserviceaccount.com"
    return form_fault(_ACCOUNT, account, form)


def read_display_name(section: Section) -> str:
    """Parse `displayName`: 1 to 128 characters (facts/limits#labels)."""
    check_texts(section, "displayName")
    if not section.text("displayName"):
        section.fault("displayName", "The display name must be set.")
    return section.text("displayName")


def check_texts(section: Section, *names: str) -> None:
    """Report texts that are too long for display, or that would use too much memory in lists."""
    for name in names:
        most = MAX_DISPLAY_NAME if name == "displayName" else MAX_TEXT
        if len(section.text(name)) > most:
            section.fault(name, f"At most {most} characters are allowed.")


def read_labels(request: Section) -> tuple[tuple[str, str], ...]:
    """Parse the request's labels. Each faulty label is reported under its own key (facts/limits#labels)."""
    entries = cast("Mapping[str, Any]", request.values.get("labels") or {})
    # Do not count the label that the service adds to a copy of a job.
    if len(entries.keys() - {COPY_LABEL}) > MAX_LABELS:
        request.fault("labels", f"The field has {len(entries)} labels; at most {MAX_LABELS} are allowed.")
        return ()
    labels = tuple((key, str(value)) for key, value in entries.items())
    for key, value in labels:
        if fault := _label_fault(key, "key") or _label_fault(value, "value"):
            request.faults.add(f"{request.path_of('labels')}.{key}", fault)
    return labels


def _label_fault(text: str, part: str) -> str:
    if part == "key" and not (text and _is_label_letter(text[0])):
        return f"The label key {text!r} must start with a lowercase letter or digit."
    if len(text) > MAX_LABEL_CHARS or len(text.encode()) > MAX_LABEL_BYTES:
        return (
            f"The label {part} {text!r} is too long; at most {MAX_LABEL_CHARS} characters and "
            f"{MAX_LABEL_BYTES} bytes are allowed."
        )
    if not all(_is_label_letter(letter) or letter in "_-" for letter in text):
        return (
            f"The label {part} {text!r} may contain only lowercase letters, digits, underscores and dashes."
        )
    return ""


def _is_label_letter(letter: str) -> bool:
    """Return whether the character is a decimal digit, or a letter of any script that is not upper case."""
    return letter.isdecimal() or (letter.isalpha() and letter == letter.lower())


def read_choice(section: Section, name: str, choices: Mapping[str, T]) -> T:
    """Parse an enum. `choices` contains the values by their public names. The first value is used for an
    unset or invalid field."""
    value = section.enum(name)
    if value not in choices:
        section.fault(name, f"{value!r} is not one of {', '.join(filter(None, choices))}.")
    return choices.get(value, next(iter(choices.values())))


def read_distinct(
    section: Section, name: str, noun: str, fault: Callable[[str], str | None]
) -> tuple[str, ...]:
    """Parse a list of texts without duplicates."""
    seen: set[str] = set()

    def wrong(text: str) -> str | None:
        if text in seen:
            return f"The {noun} {text!r} appears more than once."
        seen.add(text)
        return fault(text)

    return section.checked_texts(name, wrong)


def ineffective_fields(section: Section, instead: Mapping[str, str]) -> tuple[str, ...]:
    """Return warnings about fields that are set but not supported. `instead`: the actual behavior, by
    field."""
    return tuple(
        f"{section.path_of(name)} is not supported by this service: {what}."
        for name, what in instead.items()
        if section.is_set(name)
    )


def refuse(section: Section, reasons: Mapping[str, str]) -> None:
    """Report fields that are set and cannot be supported. `reasons`: the reason and advice, by field."""
    for name, reason in reasons.items():
        if section.is_set(name):
            section.fault(name, reason)


def read_env(section: Section) -> tuple[tuple[str, str], ...]:
    """Parse the `env` of a program, in its order. A later variable of the same name overrides an earlier one
    (facts/program#variables)."""
    if (count := section.count("env")) > MAX_ENV:
        section.fault("env", f"The field has {count} variables; at most {MAX_ENV} are allowed.")
        return ()
    variables: list[tuple[str, str]] = []
    for variable in section.sections("env"):
        name = variable.text("name")
        if not _VARIABLE.fullmatch(name):
            variable.fault(
                "name",
                f"{name!r} is not a variable name. Use letters, digits and underscores, and do "
                "not start with a digit.",
            )
        value = variable.text("value")
        fault = string_fault(value, beside=f"{name}=") or secrets.text_fault(value)
        variable.check("value", fault)
        variables.append((name, value))
    size = sum(len(name.encode()) + len(value.encode()) for name, value in variables)
    if size > MAX_ENV_BYTES:
        section.fault(
            "env",
            f"The variables have {size} bytes in total; at most {MAX_ENV_BYTES} are "
            "allowed. Put long values into a file in a bucket.",
        )
    return tuple(variables)


def read_arguments(section: Section, name: str, *, expanded: bool = False) -> tuple[str, ...]:
    """Parse a list of program arguments: no zero byte, at most 100,000 characters in total
    (facts/limits#sizes).

    `expanded`: whether `$(VAR)` is replaced in the arguments. `$(secret:NAME)` is then rejected, because
    users may expect its replacement too.
    """
    if (length := sum(map(len, section.texts(name)))) > MAX_ARGS_CHARS:
        section.fault(
            name,
            f"The arguments have {length} characters in total; at most {MAX_ARGS_CHARS} are "
            "allowed. Put long values into a file in a bucket.",
        )
        return ()
    section.check(name, _list_fault(section.texts(name), is_command=name in _COMMANDS))
    return section.checked_texts(
        name, lambda text: string_fault(text) or (secrets.argument_fault(text) if expanded else None)
    )


_COMMANDS = ("command", "containerCommand")


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # A quotation mark is missing, so split at spaces only.
        return text.split()


def _list_fault(words: tuple[str, ...], *, is_command: bool) -> str:
    """Return an error about a list that was made from a text by mistake: Python split the text into
    characters, or the whole text is the name of the program."""
    first = words[0].split() if is_command and words else []
    if len(first) > 1 and "/" not in first[0]:
        example = ", ".join(json.dumps(word) for word in (*_words(words[0]), *words[1:])[:8])
        return (
            f"The first item is the name of a program, and {words[0][:60]!r} has spaces. Write a list "
            f"with one word per item: [{example}]."
        )
    text = "".join(words)
    is_text = is_command or text.startswith("--")
    if not is_text or len(words) < MIN_LETTERS or len(text) != len(words):
        return ""
    example = ", ".join(repr(word) for word in text.split()[:5])
    return (
        f"Each of the {len(words)} items is one character. Was the text {text[:60]!r} passed where a list is "
        f"expected? Pass a list with one word per item: [{example}]."
    )


def read_packages(section: Section) -> tuple[str, ...]:
    """Parse `packageUris`: 1 to 100 gs:// objects (facts/packaging#packages)."""
    count = section.count("packageUris")
    if not count:
        section.fault("packageUris", "At least one Python package must be set as gs://BUCKET/PATH.")
    if count > MAX_PACKAGES:
        section.fault("packageUris", f"The field has {count} packages; at most {MAX_PACKAGES} are allowed.")
        return ()
    return section.checked_texts("packageUris", package_fault)


def read_module(section: Section) -> str:
    """Parse `pythonModule`."""
    module = section.text("pythonModule")
    section.check("pythonModule", module_fault(module))
    return module


def package_fault(uri: str) -> str:
    """Return the error in the path of a Python package."""
    return bucket_path_fault(uri, needs_object=True)


def cluster_size_fault(replicas: int) -> str:
    """Return an error if CLUSTER_SPEC and TF_CONFIG cannot contain the addresses of this number of
    replicas."""
    most = MAX_STRING_BYTES // BYTES_PER_ENDPOINT
    if fits_cluster_spec("", replicas):
        return ""
    return (
        f"The job has {replicas} replicas, and the variables of a program cannot hold more than about {most} "
        "addresses. Use fewer replicas."
    )


def cluster_size_warnings(job_json: str, replicas: int) -> tuple[str, ...]:
    """Return a warning if the job's JSON is too long for CLUSTER_SPEC, TF_CONFIG and CLOUD_ML_JOB."""
    if fits_cluster_spec(job_json, replicas):
        return ()
    return (
        "The job is too long for one variable of a program: CLUSTER_SPEC and TF_CONFIG do not contain its "
        "specification (`job`), and CLOUD_ML_JOB may lack its longest fields. All arguments and variables "
        "of the job are passed.",
    )


def string_fault(text: str, beside: str = "") -> str | None:
    """Return the error in one argument or one variable's value. `beside`: the text before `text` in the same
    string, such as `NAME=`. It counts towards the size limit of the string."""
    if "\0" in text:
        return "It contains a zero byte, which programs cannot receive. Remove it."
    if len(f"{beside}{text}".encode()) > MAX_STRING_BYTES:
        return (
            f"It has more than {MAX_STRING_BYTES} bytes, the limit of one argument or variable. Put it "
            "into a file in a bucket."
        )
    return secrets.marks_fault(text)
