"""The commands about jobs: they list, describe, follow, enter, drill and explain them."""
