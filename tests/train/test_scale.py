"""docs/scale: files for Slurm and Kubernetes, as far as they can be read here, and what the page says of them."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from hdlm.cli.main import build_parser, main
from hdlm.config import recipes

ROOT = Path(__file__).parents[2]
PAGE, SLURM, KUBERNETES = (ROOT / "docs" / name for name in ("scale.md", "scale/slurm.sbatch", "scale/kubernetes.yaml"))


def check_command(words):
    """The words after `torchrun`, by its own parser and then by that of hdlm; what hdlm is given."""
    launch = get_args_parser().parse_args(words)
    assert (launch.module, launch.training_script, launch.rdzv_backend) == (True, "hdlm", "c10d")
    assert launch.max_restarts == "3" or launch.max_restarts == 3
    args, fields = build_parser().parse_known_args(launch.training_script_args)
    assert (args.command, args.resume) == ("train", "auto")
    flags = [word for word in fields if word.startswith("--")]
    assert {word.split("=")[0] for word in flags} == {"--sharded", "--hybrid"}
    return launch, args


def test_the_slurm_file_is_a_shell_script_that_starts_a_run():
    done = subprocess.run(["bash", "-n", SLURM], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    text = SLURM.read_text()
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", text, flags=re.MULTILINE))
    assert options.keys() >= {"nodes", "ntasks-per-node", "gpus-per-node", "time", "requeue"}
    assert options["ntasks-per-node"] == "1", "one agent a machine"
    inner = re.search(r"exec torchrun(.*?)' \"\$RECIPE\"", text, flags=re.DOTALL)[1].replace("\\\n", " ")
    known = {"SLURM_NNODES": options["nodes"], "SLURM_JOB_ID": "7", "HEAD": "a", "0": "owt-gamma-flat", "1": "/runs/a"}
    words = shlex.split(re.sub(r"\$(\w+)", lambda name: known[name[1]], inner))
    launch, args = check_command(words)
    assert launch.nproc_per_node == options["gpus-per-node"]
    recipes.get(re.search(r"RECIPE:-([\w-]+)", text)[1])
    assert (args.recipe, str(args.out)) == ("owt-gamma-flat", "/runs/a")


def test_the_kubernetes_file_is_a_job_of_agents_that_find_each_other():
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    service, job = yaml.safe_load_all(KUBERNETES.read_text())
    assert (service["apiVersion"], service["kind"]) == ("v1", "Service")
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"]
    assert pod["restartPolicy"] in ("OnFailure", "Never"), "the two that a Job may have"
    assert pod["subdomain"] == service["metadata"]["name"], "or the pods would have no names"
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"].items() <= spec["template"]["metadata"]["labels"].items()
    [container] = pod["containers"]
    assert container.keys() >= {"name", "image", "command", "args"}
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    assert container["command"] == ["torchrun"]
    launch, args = check_command(container["args"])
    assert int(launch.nnodes) == spec["completions"]
    assert int(launch.nproc_per_node) == container["resources"]["limits"]["nvidia.com/gpu"]
    assert launch.rdzv_endpoint.split(":")[0] == f"{job['metadata']['name']}-0.{pod['subdomain']}"
    assert str(args.out).startswith(container["volumeMounts"][0]["mountPath"])
    recipes.get(args.recipe)


def test_the_lines_of_the_page_print_or_are_refused_for_what_they_are(capsys):
    lines = re.findall(r"^hdlm (train .*?--(?:gpus|nodes).*?)(?: +#.*)?$", PAGE.read_text(), flags=re.MULTILINE)
    assert len(lines) == 3
    for line in lines:
        assert main(shlex.split(line)) == 0
        assert capsys.readouterr().out.startswith("torchrun ")


def test_plans_of_the_page_are_those_of_today():
    done = subprocess.run([sys.executable, ROOT / "docs" / "scale.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(part.strip() in PAGE.read_text() for part in done.stdout.split("\n\n"))


def test_files_and_figures_of_the_page_are_there():
    text = " ".join(PAGE.read_text().split())
    for name in re.findall(r"`((?:tests|benchmarks|docs)/[\w/.]+)`", text) + re.findall(r"\]\((scale/[\w.]+)\)", text):
        assert (ROOT / name).exists() or (ROOT / "docs" / name).exists(), name
    found = json.loads((ROOT / "benchmarks/results/cpu/checkpoint_memory.json").read_text())
    first = found["ranks"][0]
    peaks = {way: max(row["peak"] for row in first[way]) for way in ("shards", "gathered")}
    assert f"{peaks['shards']:,.0f} MiB at the peak for {first['own_mib']:,.0f} MiB of shards" in text
    assert f"gathering took {peaks['gathered']:,.0f} MiB" in text
    assert f"{found['state_mib']:,.0f} MiB in all" in text
