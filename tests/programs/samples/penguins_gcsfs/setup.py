from setuptools import find_packages
from setuptools import setup

REQUIRED_PACKAGES = ["gcsfs", "pandas>=1.3"]

setup(
    name="penguins",
    version="0.1",
    install_requires=REQUIRED_PACKAGES,
    packages=find_packages(),
    include_package_data=True,
    description="Penguin species from measurements.",
)
