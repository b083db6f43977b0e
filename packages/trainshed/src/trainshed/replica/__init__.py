"""Runs next to the user's program and supervises it. Standard library only, because it must run anywhere."""
