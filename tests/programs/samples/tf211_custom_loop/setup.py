import setuptools

setuptools.setup(
    install_requires=["tensorflow_datasets==4.8.3"],
    packages=setuptools.find_packages(),
    name="boston",
    version="0.0.0",
)
