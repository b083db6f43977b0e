from setuptools import setup

setup(name="shared-lib", version="1.2", packages=["shared_lib"], install_requires=["click"])
