from setuptools import find_packages, setup

REQUIRED_PACKAGES = ["gcsfs", "pandas>=2,<3"]

setup(
    name="census-trainer",
    version="0.1",
    install_requires=REQUIRED_PACKAGES,
    packages=find_packages(),
    include_package_data=True,
    description="Reads its data with pandas from Cloud Storage.",
)
