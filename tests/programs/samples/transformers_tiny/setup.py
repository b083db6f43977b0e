from setuptools import find_packages, setup

REQUIRED_PACKAGES = ["transformers>=4.41,<5", "datasets", "accelerate", "tqdm", "cloudml-hypertune"]

setup(name="reviews", version="0.1", install_requires=REQUIRED_PACKAGES, packages=find_packages())
