"""TensorFlow event files: their records, the scalars in them, and directories of them that are followed as
they grow."""
