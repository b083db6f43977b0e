"""A distributed training job to read, run and change: see `trainshed_demo.task`."""
