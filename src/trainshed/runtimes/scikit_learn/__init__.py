"""scikit-learn with NumPy and SciPy: stands for the scikit-learn images and, as the nearest there is, for
runtime versions."""
