from setuptools import find_packages
from setuptools import setup

setup(
    name="taxi",
    version="0.1",
    packages=find_packages(),
    install_requires=["gcsfs"],
    include_package_data=True,
    description="Regression in the manner of 2019",
)
