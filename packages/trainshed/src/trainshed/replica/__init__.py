"""The code that runs next to a user's program and supervises it. It uses only the standard library, because
it must run on every machine."""
