from setuptools import find_packages, setup

setup(name="storage-trainer", version="0.1", packages=find_packages())
