"""Runs next to the user's program and supervises it. This package uses only the standard library, because it
must run beside any program."""
