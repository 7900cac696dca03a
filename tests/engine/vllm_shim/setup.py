import os

from setuptools import setup

setup(version=f"{os.environ['VLLM']}+cpu")
