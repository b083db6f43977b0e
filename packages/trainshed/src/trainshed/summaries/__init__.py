"""Reads TensorFlow event files: records, scalars, and directories of files that grow."""
