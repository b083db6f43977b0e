"""TensorFlow event files: their records, their scalars, and directories of them that are followed."""
