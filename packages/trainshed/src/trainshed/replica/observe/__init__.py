"""Records what a running program does: its log, its use of the machine, its metrics and notes to users."""
