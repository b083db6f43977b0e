"""The commands about jobs: list, describe, follow, open a shell, and inject a fault (drill)."""
