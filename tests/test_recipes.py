"""Recipes and documentation: what they tell people to type is accepted by the real command line."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from hybridfuzz.harness.cli import COMMANDS, build_parser
from hybridfuzz.harness.gate import plugin

ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "docs/how-to/recipes"
WORKFLOWS = sorted(RECIPES.glob("github-*.yml"))
VARIABLE = re.compile(r"\$\(\(.*?\)\)|\$\{\{.*?\}\}|\$\{\w+(:[-?][^}]*)?\}|\$\w+")
"""Of a shell or a workflow; it stands for 1."""
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def steps(workflow: Path) -> list[dict[str, Any]]:
    """All steps of all jobs."""
    return [step for job in yaml.safe_load(workflow.read_text())["jobs"].values() for step in job["steps"]]


def texts() -> Iterator[tuple[str, str]]:
    """(where, text in which commands may stand), one line for each command."""
    for workflow in WORKFLOWS:
        yield workflow.name, "\n".join(step.get("run", "") for step in steps(workflow))
    for name in (
        "crontab",
        "Containerfile",
        "slurm-array.sh",
        "kubernetes-job.yml",
        "buildkite.yml",
        "ray-cluster.yml",
    ):
        yield name, (RECIPES / name).read_text()
    for page in PAGES:
        blocks = re.findall(r"^```(?:console|sh)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        lines = [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]
        yield page.name, "\n".join(lines)
    for name in COMMANDS:
        yield f"{name} --help", build_parser(name).format_help()
        epilog = __import__(
            f"hybridfuzz.harness.face.commands.{name.replace('-', '_')}", fromlist=["EXAMPLES"]
        ).EXAMPLES
        yield f"{name} --help", epilog


def commands(program: str) -> list[tuple[str, list[str]]]:
    """(where, words) of every call of a program."""
    found = []
    for where, text in texts():
        for line in VARIABLE.sub("1", text).splitlines():
            call = re.sub(rf".*?(?=\b{program} [a-z-])", "", line, count=1)
            call = re.sub(r"\s(>|2>|\|\||&&).*", "", call)
            if re.match(rf"{program} [a-z-]", call) and "[" not in call:
                found.append((where, shlex.split(call, comments=True)))
    return found


FUZZ = [call for call in commands("hybridfuzz") if call[1][1] in COMMANDS]


def test_there_is_something_to_check() -> None:
    assert {"github-nightly.yml", "crontab", "Containerfile", "README.md", "fuzz --help"} <= {
        where for where, _ in FUZZ
    }
    assert {words[1] for _, words in FUZZ} >= {"fuzz", "replay"}


@pytest.mark.parametrize(("where", "words"), FUZZ, ids=lambda value: value if isinstance(value, str) else value[1])
def test_the_command_line_accepts_it(where: str, words: list[str]) -> None:
    build_parser(words[1]).parse_args(words[1:])


def test_the_image_runs_a_command_that_exists() -> None:
    [line] = re.findall(r"^CMD (.*)", (RECIPES / "Containerfile").read_text(), re.MULTILINE)
    words = json.loads(line)
    build_parser(words[0]).parse_args(words)


def test_options_of_the_gate_exist() -> None:
    names: list[str] = []

    class Parser:
        def getgroup(self, *_: str) -> "Parser":
            return self

        def addoption(self, name: str, **_: object) -> None:
            names.append(name)

    plugin.pytest_addoption(Parser())  # type: ignore[arg-type]
    used = {
        word.partition("=")[0] for _, words in commands("pytest") for word in words if word.startswith("--hybridfuzz")
    }
    assert {"--hybridfuzz-target", "--hybridfuzz-budget", "--hybridfuzz-known"} <= used <= set(names)


def test_the_night_is_saved_whatever_happens() -> None:
    """A red night keeps its corpus: restored before, saved after the run with always(), under a new key."""
    all_steps = steps(RECIPES / "github-nightly.yml")
    uses = [step.get("uses", "").partition("@")[0] for step in all_steps]
    [run] = [index for index, step in enumerate(all_steps) if "hybridfuzz fuzz" in step.get("run", "")]
    words = shlex.split(all_steps[run]["run"])
    folder = words[words.index("-o") + 1]
    restore, save = uses.index("actions/cache/restore"), uses.index("actions/cache/save")
    assert restore < run < save
    assert all_steps[save]["if"] == "always()"
    assert all_steps[save]["with"]["path"] == all_steps[restore]["with"]["path"] == folder
    assert all_steps[save]["with"]["key"] == all_steps[restore]["with"]["key"]
    assert all_steps[save]["with"]["key"].startswith(all_steps[restore]["with"]["restore-keys"])
    assert "run_id" in all_steps[save]["with"]["key"]


def with_schema(name: str, schema: str) -> None:
    """Validate a recipe with a schema that check-jsonschema ships: no network is needed."""
    package = pytest.importorskip("check_jsonschema")
    path = Path(package.__file__).parent / "builtin_schemas" / "vendor" / f"{schema}.json"
    jsonschema.validate(yaml.safe_load((RECIPES / name).read_text()), json.loads(path.read_text()))


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_keep_the_schema_of_github(workflow: Path) -> None:
    """YAML 1.1 reads the key `on` as true."""
    package = pytest.importorskip("check_jsonschema")
    path = Path(package.__file__).parent / "builtin_schemas" / "vendor" / "github-workflows.json"
    content = {("on" if key is True else key): value for key, value in yaml.safe_load(workflow.read_text()).items()}
    jsonschema.validate(content, json.loads(path.read_text()))


def test_the_pipeline_keeps_the_schema_of_buildkite() -> None:
    with_schema("buildkite.yml", "buildkite")


def test_the_job_keeps_the_schema_of_kubernetes() -> None:
    """Strictly: a field that Kubernetes does not know is an error."""
    validate = pytest.importorskip("kubernetes_validate")
    job = yaml.safe_load((RECIPES / "kubernetes-job.yml").read_text())
    validate.validate(job, "1.33", strict=True)
    assert job["spec"]["completions"] == 16
    with pytest.raises(validate.ValidationError):
        validate.validate({**job, "spec": {**job["spec"], "completionMod": "Indexed"}}, "1.33", strict=True)


def run_script(text: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script with the real command line."""
    bin_folder = folder / "bin"
    bin_folder.mkdir(exist_ok=True)
    program = bin_folder / "hybridfuzz"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m hybridfuzz.harness.cli "$@"\n')
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}", **variables}
    return subprocess.run(
        ["bash", "-c", text], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def short(text: str) -> str:
    """Return a recipe's script with the built-in target and few traces."""
    return re.sub(r"--time \S+", "--traces 6 --no-canary", re.sub(r"--target \S+", "--target hybrid", text))


def test_recipes_run_as_far_as_possible_without_their_service(tmp_path: Path) -> None:
    """Two tasks of the Slurm array, two pods of the job and two parallel steps, each with the variables that its
    service sets; then the merge that the recipe names."""
    slurm = short((RECIPES / "slurm-array.sh").read_text()).replace("${TIME:-8h}", "")
    job = yaml.safe_load((RECIPES / "kubernetes-job.yml").read_text())
    [container] = job["spec"]["template"]["spec"]["containers"]
    pod = short(container["args"][0]).replace("/16", "/2").replace("--jobs 8", "--jobs 1")
    pod = pod.replace("s3://BUCKET", f"local://{tmp_path}/bucket")
    step, _ = yaml.safe_load((RECIPES / "buildkite.yml").read_text())["steps"]
    parallel = short(step["command"]).replace("--jobs auto", "--jobs 1").replace("night-", "parallel-")
    for number in (0, 1):
        ran = [
            run_script(slurm, tmp_path, SEED="7", SLURM_ARRAY_TASK_ID=str(number + 1), SLURM_ARRAY_TASK_COUNT="2",
                       SLURM_CPUS_PER_TASK="1"),
            run_script(pod, tmp_path, JOB_COMPLETION_INDEX=str(number)),
            run_script(parallel, tmp_path, BUILDKITE_BUILD_NUMBER="7", BUILDKITE_PARALLEL_JOB=str(number),
                       BUILDKITE_PARALLEL_JOB_COUNT="2"),
        ]  # fmt: skip
        assert [one.returncode in (0, 3) for one in ran] == [True] * 3, [one.stderr for one in ran]
        assert ran[1].returncode == 0, "a vacuous night is no failure of the pod"
    for folders in ("night/*", "bucket/night/*", "parallel-*"):
        merged = run_script(f"hybridfuzz merge {folders} -o all-{folders[:5].strip('/*')} --json", tmp_path)
        assert json.loads(merged.stdout.splitlines()[-1])["traces"] == 6, merged.stderr
