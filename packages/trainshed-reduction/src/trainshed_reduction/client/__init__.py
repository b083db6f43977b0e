"""A worker's side of the reduction: one communicator for each group, with a thread that sends and receives
the data."""
