"""Commands about jobs: list, describe, follow, enter, drill and explain them."""
