"""The loop that all of a process waits on: background work whose death is heard, and how late the loop is."""
