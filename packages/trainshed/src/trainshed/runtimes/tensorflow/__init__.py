"""TensorFlow with the libraries of its time, for the TensorFlow images and for runtime versions."""
