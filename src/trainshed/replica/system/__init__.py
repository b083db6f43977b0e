"""Calls of the kernel and what lies close to it: processes, control groups, sockets, files, the event
loop."""
