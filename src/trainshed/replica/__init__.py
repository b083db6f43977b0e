"""Everything that runs beside the user's program. Standard library only: it must run anywhere."""
