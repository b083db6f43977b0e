"""What a dataset is, which row of it goes to which split, and how rows become files. Pure."""
