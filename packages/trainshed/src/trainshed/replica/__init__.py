"""Runs next to the user's program and supervises it. Standard library only, to run beside any program."""
