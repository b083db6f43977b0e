from setuptools import find_packages, setup

setup(
    name="lgbdask",
    version="0.1",
    packages=find_packages(),
    install_requires=["lightgbm>=4", "dask[distributed,array]", "pandas<3"],
)
