"""scikit-learn with NumPy and SciPy, for the scikit-learn images and in place of runtime versions."""
