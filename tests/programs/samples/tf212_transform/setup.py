from setuptools import find_packages, setup

REQUIRED_PACKAGES = ["tensorflow-transform"]

setup(name="reviews", version="0.1", install_requires=REQUIRED_PACKAGES, packages=find_packages())
