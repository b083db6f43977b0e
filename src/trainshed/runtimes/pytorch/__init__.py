"""PyTorch: stands for the PyTorch images, whose names say cpu, xla, tpu or gpu. CPU builds; CUDA where a GPU
is."""
