"""Decides on a snapshot of the cluster which jobs run where, which wait and why, and which yield. Pure."""
