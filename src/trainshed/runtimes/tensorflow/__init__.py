"""TensorFlow with the libraries of its day: stands for the TensorFlow images and for runtime versions."""
