"""Runs next to the user's program and supervises it. Uses only the standard library, to run beside any program."""
