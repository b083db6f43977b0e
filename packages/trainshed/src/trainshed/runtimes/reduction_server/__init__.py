"""What reducers run in: an interpreter and NumPy. The package `trainshed_reduction` is not of it."""
