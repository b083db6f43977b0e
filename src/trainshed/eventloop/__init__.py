"""The loop that all of a process waits on: work in the background whose death is heard, and how late the loop
is."""
