"""What reducers run in: an interpreter and NumPy. Their own package comes from `trainshed.reduction`."""
