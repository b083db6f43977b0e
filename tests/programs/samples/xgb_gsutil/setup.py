from setuptools import setup

setup(name="iris-xgb", version="0.1", packages=["trainer"], install_requires=["pandas"])
