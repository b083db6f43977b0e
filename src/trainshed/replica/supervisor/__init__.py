"""Starts a program, keeps it and records its end: shim, guardian, journal, and what runs beside the
program."""
