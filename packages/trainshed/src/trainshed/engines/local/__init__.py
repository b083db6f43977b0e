"""Runs slots on this machine. Each replica has one shim, which is forked from a zygote and isolated as far as
the host allows."""
