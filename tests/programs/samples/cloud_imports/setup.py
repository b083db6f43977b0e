from setuptools import find_packages, setup

setup(
    name="cloud_imports", version="0.1", packages=find_packages(), install_requires=["google-cloud-logging"]
)
