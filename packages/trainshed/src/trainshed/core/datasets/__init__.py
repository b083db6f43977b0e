"""What a dataset is, how its rows are assigned to splits, and how rows are written to files. Pure."""
