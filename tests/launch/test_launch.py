"""Launching, as far as it can be seen without a GPU: configurations, plans, and the SLURM script with stand-ins."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file

from alignopsd_trl.commands.launch.machine import Launch, from_file, launched, processes_of

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "recipes" / "accelerate"
SHIPPED = {
    "one_gpu.yaml": Launch(),
    "ddp.yaml": Launch(8, 1, "DDP"),
    "fsdp2.yaml": Launch(8, 1, "FSDP2", loads_once=True),
    "zero3.yaml": Launch(8, 1, "ZeRO-3", loads_once=True),
    "fsdp2_nodes.yaml": Launch(16, 2, "FSDP2", loads_once=True),
}


def test_all_shipped_configurations_are_read() -> None:
    assert {path.name for path in CONFIGS.glob("*.yaml")} == set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_configuration_is_read_as_accelerate_reads_it(name: str) -> None:
    """The launcher's own parser accepts the file, and sets the variables that make the same launch."""
    read, config = from_file(CONFIGS / name), load_config_from_file(str(CONFIGS / name))
    assert read == SHIPPED[name]
    assert (read.processes, read.nodes) == (config.num_processes, config.num_machines)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, Launch()),
        ({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}, Launch(8, 1, "DDP")),
        (
            {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"},
            Launch(16, 2, "FSDP2"),
        ),
        ({"WORLD_SIZE": "8", "ACCELERATE_USE_FSDP": "true"}, Launch(8, 1, "FSDP1")),
        (
            {"WORLD_SIZE": "8", "ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"},
            Launch(8, 1, "ZeRO-3", loads_once=True),
        ),
    ],
)
def test_launch_is_read_from_the_launchers_variables(variables: dict[str, str], expected: Launch) -> None:
    assert launched(variables) == expected


def test_file_that_is_no_configuration_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("rounds: 3\n")
    with pytest.raises(ValueError, match="no accelerate configuration"):
        from_file(tmp_path / "run.yaml")


@pytest.mark.parametrize(
    ("launcher", "processes"),
    [
        (["python", "-m", "alignopsd_trl.commands.study.cell", "folder"], 1),
        (["accelerate", "launch", "--num_processes", "4", "-m", "cell"], 4),
        (["torchrun", "--nproc_per_node=2", "-m", "cell"], 2),
        (["accelerate", "launch", "--config_file", str(CONFIGS / "fsdp2_nodes.yaml"), "-m", "cell"], 8),
        (["accelerate", "launch", "--config_file", str(CONFIGS / "fsdp2.yaml"), "--num_processes", "4", "cell"], 4),
    ],
)
def test_processes_of_a_launcher_share_the_cores(launcher: list[str], processes: int) -> None:
    assert processes_of(launcher) == processes


STANDINS = {
    "scontrol": 'printf "%s\\n" a1 a2 a3',
    "srun": 'until [[ $1 =~ ^(vllm|bash)$ ]]; do [ "$1" = --nodelist ] && echo "on $2"; shift; done; exec "$@"',
    "vllm": 'echo "dev mode $VLLM_SERVER_DEV_MODE, $@"; exec sleep 60',
    "accelerate": 'sleep 0.3; echo "$@"',
}


@pytest.mark.parametrize("server", [False, True])
def test_slurm_script_starts_one_launcher_a_node(tmp_path: Path, server: bool) -> None:
    for name, body in STANDINS.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "a[1-3]", "SLURM_PROCID": "1"}
    if server:
        variables["MODEL"] = "policy"
    script = ["bash", str(CONFIGS / "nodes.sbatch"), "recipes/webshop_7b.py", "--seed", "1"]
    done = subprocess.run(script, env={**os.environ, **variables}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    nodes, first = (2, "a2") if server else (3, "a1")
    assert f"--num_machines {nodes} --num_processes {8 * nodes} --machine_rank 1" in done.stdout
    assert f"--main_process_ip {first}" in done.stdout
    assert "recipes/webshop_7b.py --seed 1" in done.stdout
    if server:
        assert "on a1" in done.stdout and "on a2,a3" in done.stdout
        assert "dev mode 1, serve policy" in done.stdout and "--logprobs-mode processed_logprobs" in done.stdout
        assert "--use_vllm --vllm_mode server --vllm_server_base_url http://a1:8000" in done.stdout
