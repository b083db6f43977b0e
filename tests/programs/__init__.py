"""Training programs as the public writes them, each submitted as its readers would, its model loaded
again."""
