"""Training programs in public style, each submitted as in its instructions, with its model loaded again."""
