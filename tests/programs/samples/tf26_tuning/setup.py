from setuptools import find_packages, setup

setup(
    name="horses", version="0.1", packages=find_packages(), install_requires=["cloudml-hypertune"]
)
