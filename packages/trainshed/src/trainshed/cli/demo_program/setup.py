"""Makes the demo a usual source distribution, as any user's training package is one.

No requirements are named: NumPy, scikit-learn, google-cloud-storage and cloudml-hypertune come with the
runtime.
"""

from setuptools import setup

setup(
    name="trainshed-demo",
    version="1.0",
    description="Distributed training of a small network on handwritten digits",
    packages=["trainshed_demo"],
    python_requires=">=3.10",
)
