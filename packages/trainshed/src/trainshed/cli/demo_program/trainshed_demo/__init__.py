"""A distributed training job that can be read, run and changed: see `trainshed_demo.task`."""
