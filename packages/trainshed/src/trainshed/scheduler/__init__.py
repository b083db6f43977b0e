"""Decides on a snapshot of the cluster who runs where, who waits and why, and who yields. Pure."""
