"""Slots on this machine: one shim per replica, forked from a zygote, isolated as far as the host allows."""
