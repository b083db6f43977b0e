"""Snapshot in, decisions out: who runs where, who waits and why, who yields. Pure."""
