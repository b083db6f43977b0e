"""The commands about jobs: they list, describe, follow, enter and drill them."""
