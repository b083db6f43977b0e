from setuptools import find_packages, setup

setup(name="flowers", version="0.1", packages=find_packages(), install_requires=["tqdm"])
