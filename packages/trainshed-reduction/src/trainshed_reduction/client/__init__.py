"""A worker's side: one communicator for each group, with a thread that moves the bytes."""
