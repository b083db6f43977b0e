"""Runtime versions of `ml` v1 and the Pythons that go with them (facts/packaging#runtime-versions,
spec/submit#defaults)."""

import functools

from trainshed.core.catalog.tables import table


@functools.cache
def runtime_versions() -> dict[str, tuple[str, ...]]:
    """Return the Pythons of each runtime version, oldest first; both ascending."""
    return {
        version: tuple(pythons)
        for version, pythons in table("runtime_versions")["pythonVersions"].items()
    }


def newest() -> str:
    """Return the version for which the default runtime counts, where a rule depends on the version."""
    return next(reversed(runtime_versions()))


def default_python(runtime_version: str) -> str:
    """Return the runtime's own Python: the newest that goes with it. Raise KeyError for an unknown
    version."""
    return runtime_versions()[runtime_version][-1]


def pair_fault(runtime_version: str, python_version: str) -> str:
    """Return why the two do not go together, in the public words (facts/limits#error-texts), or "" when they
    do.

    "" as runtime version means the default runtime, "" as Python version the runtime's own.
    """
    known = runtime_versions()
    pythons = known.get(runtime_version or newest())
    if pythons is not None and (not python_version or python_version in pythons):
        return ""
    if pythons is None:
        hint = f"Known versions: {', '.join(known)}."
    else:
        subject = f"Runtime version {runtime_version}" if runtime_version else "The default runtime"
        hint = f"{subject} goes with Python {' or '.join(pythons)}."
    return (
        f"The specified runtime version '{runtime_version}' with the Python version "
        f"'{python_version}' is not supported or is deprecated.  Please specify a different "
        f"runtime version. {hint}"
    )


def names_chief(runtime_version: str) -> bool:
    """Whether TF_CONFIG of this runtime says `chief` rather than `master` (facts/program#tf_config)."""
    return _order(runtime_version or newest()) >= _order(table("runtime_versions")["chiefFrom"])


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
