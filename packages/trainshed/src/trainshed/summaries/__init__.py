"""Reads TensorFlow event files: records, scalars, and directories in which programs write event files."""
