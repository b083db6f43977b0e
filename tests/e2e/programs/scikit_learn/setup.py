from setuptools import find_packages, setup

setup(
    name="iris-trainer",
    version="0.1",
    packages=find_packages(),
    description="Classifies irises with scikit-learn.",
)
