"""Reads TensorFlow event files: their records, their scalars, and directories of them as they grow."""
