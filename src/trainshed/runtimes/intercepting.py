"""Which packages read gs:// by the names of Google's hosts, whatever endpoint a program is told (`LaunchPlan.intercept`)."""

from trainshed.runtimes.prefix import Prefix

PACKAGES_PAST_SETTINGS = ("tensorflow",)
"""Directories in site-packages. TensorFlow's file system is compiled code with the host's name in it."""


def reads_past_settings(*prefixes: Prefix) -> bool:
    """Whether such a package is in one of the prefixes, a job's own packages included. A few stat calls."""
    return any(
        (prefix.site / name).is_dir() for prefix in prefixes for name in PACKAGES_PAST_SETTINGS
    )
