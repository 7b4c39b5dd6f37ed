"""Which folder installs as which package; everything else is in pyproject.toml.

Setuptools' declarative discovery cannot combine `find` with this mapping, and a list by hand rots.
"""

from setuptools import find_packages, setup

FOLDERS = ("harness", "reference", "targets", "corpus", "reports")

setup(
    package_dir={f"hybridfuzz.{folder}": folder for folder in FOLDERS},
    packages=[f"hybridfuzz.{package}" for package in find_packages(include=[f"{folder}*" for folder in FOLDERS])],
)
