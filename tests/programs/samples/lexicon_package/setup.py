import os

import setuptools

HERE = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(HERE, "README.md")) as readme:
    LONG_DESCRIPTION = readme.read()

setuptools.setup(
    name="sentiment-trainer",
    version="0.3.1",
    long_description=LONG_DESCRIPTION,
    packages=setuptools.find_packages(),
    package_data={"sentiment": ["*.json", "resources/*.txt"]},
    include_package_data=True,
    install_requires=["cloudpickle", "tabulate>=0.8", "PyYAML"],
    extras_require={"dev": ["pytest"], "plots": ["matplotlib"]},
    entry_points={"console_scripts": ["sentiment-train=sentiment.task:main"]},
    python_requires=">=3.7",
)
