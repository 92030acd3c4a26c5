"""The rooms lie at the top of the checkout and are installed as tokentape.<room>: one name of ours in site-packages."""

import tomllib
from pathlib import Path

from setuptools import find_packages, setup

ROOMS = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["tool"]["tokentape"]["rooms"]
INSIDE = [f"{room}.{package}" for room in ROOMS for package in find_packages(room)]

setup(
    packages=["tokentape", *(f"tokentape.{package}" for package in (*ROOMS, *INSIDE))],
    package_dir={"tokentape": "tokentape", **{f"tokentape.{room}": room for room in ROOMS}},
)
