"""The family of the gsutil that jobs call: its lock, its smoke test, and its launcher."""
