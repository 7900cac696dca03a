from pathlib import Path

from setuptools import find_packages, setup

NOTEBOOKS = ["matplotlib>=3.9", "nbclient>=0.10", "ipykernel>=6.29"]

setup(
    name="alignopsd-trl",
    version="0.1.0",
    description="AlignOPSD on TRL: decision-aligned on-policy distillation for agents that act over many turns",
    long_description=(Path(__file__).parent / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10",
    packages=find_packages(include=["alignopsd_trl*", "environments*"]),
    package_data={
        "alignopsd_trl": ["data/**/*", "viewer/assets/*"],
        "environments": ["**/*.json", "**/*.jsonl", "**/*.txt", "**/*.jinja"],
    },
    install_requires=[
        "torch>=2.6",
        "trl>=1.16,<1.17",
        "transformers>=5.17",
        "accelerate>=1.12",
        "datasets>=4.0",
        "peft>=0.18",
        "sentence-transformers>=6",  # brings scikit-learn, of which the lexical encoder is made
        "bm25s>=0.2.14",
        "gymnasium>=1.1",
        "jinja2",
        "pandas>=2.2",
        "pyarrow>=18",
        "pyyaml",
        "regex",
        "rich>=13",
        "scipy>=1.13",
        "tqdm",
        "urllib3>=2",
    ],
    extras_require={
        "vllm": ["vllm>=0.22,<0.32"],
        "alfworld": ["textworld[pddl]>=1.7,<1.8", "alfworld>=0.4.2,<0.6"],
        "search": ["faiss-cpu>=1.9"],
        "wandb": ["wandb>=0.19"],
        "browser": ["selenium>=4.30"],
        "studies": ["matplotlib>=3.9"],
        "notebooks": NOTEBOOKS,
        "test": ["pytest>=8", "hypothesis>=6.100", "ruff>=0.11", *NOTEBOOKS],
    },
)
