"""PyTorch for the PyTorch images, whose names say cpu, xla, tpu or gpu: CPU builds, or CUDA with a GPU."""
