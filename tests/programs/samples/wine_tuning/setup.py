from setuptools import find_packages, setup

setup(name="wine", version="1.0", packages=find_packages(), install_requires=["cloudml-hypertune"])
