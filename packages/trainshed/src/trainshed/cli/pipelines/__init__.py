"""The commands about pipeline jobs: run, list, describe, watch, cancel, retry and delete."""
