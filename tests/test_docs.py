"""What the README and the examples show works as printed."""

import json
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import pearl
from tests import notebooks

ROOT = Path(__file__).parents[1]


def test_the_lines_of_python_run(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert "steps=50_000" in code
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    shorter = code.replace("steps=50_000", "steps=2_000")
    done = subprocess.run(
        [sys.executable, "-c", shorter], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "env steps/s" in done.stdout
    assert (tmp_path / "runs/dqn/report.html").read_text().startswith("<!doctype html>")


def test_the_spec_in_the_readme_loads():
    (text,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    import yaml

    system = pearl.load(yaml.safe_load(text))
    assert system.limits.power_w == 350


def test_the_example_without_rl_finds_the_gpu_for_the_heavy_stage():
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        import placement_without_rl
    finally:
        sys.path.pop(0)
    plan = placement_without_rl.main()
    assert plan.task("detect").device == "gpu"
    assert plan.status == "optimal"
    # two frames in flight around decode 4 ms, copy, detect 5 ms, copy, draw 2 ms
    around = 4e-3 + (1e-4 + 6e6 / 8e9) + 5e-3 + (1e-4 + 1e4 / 8e9) + 2e-3
    assert plan.period_s == pytest.approx(around / 2)


SOLVER = re.findall(r"```python\n(.*?)```", (ROOT / "docs/solver.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("code", SOLVER, ids=["job shop", "pipeline", "groups"])
def test_an_example_of_the_solver_is_short_and_draws_its_chart(code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert code.count("\n") < 40
    exec(compile(code, "docs/solver.md", "exec"), {})
    (chart,) = tmp_path.glob("*.svg")
    assert chart.read_text() == (ROOT / "docs" / chart.name).read_text()
    told = capsys.readouterr().out
    assert re.search(
        "all done after 15 s, optimal|every 9.000 ms, 0.0%|lag 1: 458 s.*optimal", told
    )


def test_the_example_of_groups_of_gpus_chooses_the_published_split(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["llm_placement.py"])
    monkeypatch.syspath_prepend(ROOT / "examples")
    import llm_placement

    plan = llm_placement.main()
    groups = [(sorted(tasks), gpus) for tasks, gpus in llm_placement.groups_of(plan)]
    assert groups == [(["rollout"], 4), (["old_log_prob", "update_actor"], 12)]
    assert (plan.period_s, plan.status) == (458.0, "optimal")
    assert (tmp_path / "placement.svg").read_text().startswith("<svg")
    tight = {  # training holds 84 GB on one GPU, 42 GB on each of two
        "gpus": 4, "times": {"rollout": {1: 4.0}, "train": {1: 1.0, 2: 2.0}}, "gpu_gb": 80,
        "sharded_gb": {"train": 84}, "each_gb": {"rollout": 40}, "transfer_s": 0.5, "lag": 1,
    }  # fmt: skip
    plan = pearl.solve(**llm_placement.read(tight))
    assert plan.task("train").width == 2
    assert sorted(llm_placement.groups_of(plan)) == [(["rollout"], 1), (["train"], 2)]
    assert plan.period_s == 4.0  # 40 + 42 GB are too much for one group


def test_no_path_of_a_machine_stands_in_the_repository():
    pattern = re.compile(r"/(work|root|home|tmp)/[a-z]")
    files = [p for p in ROOT.rglob("*") if p.suffix in {".md", ".py", ".toml", ".yaml"}]
    skipped = {".git", "tests", "runs", "build"}
    for file in files:
        parts = file.relative_to(ROOT).parts
        if not skipped & set(parts) and not any(p.startswith(".") for p in parts):
            assert not pattern.search(file.read_text()), file


PLACES = r"`((?:pearl|devices|estimators|tests|configs|benchmarks|examples|docs)/[\w./-]*[\w/])`"
NAMES = r"\b((?:pearl|pearl_devices|pearl_estimators|benchmarks|tests)(?:\.\w+)+)"
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_names_of_a_page_are_there(page):
    text = page.read_text()
    for place in re.findall(PLACES, text):
        if not re.search("NAME|KIND", place):
            assert (ROOT / place).exists(), place
    for name in set(re.findall(NAMES, text)):
        if not re.search(r"NAME|KIND|\.md$", name):
            assert there(name.split(".")), name


def there(parts):
    """Whether a dotted name is that of a module, or of what one has."""
    for n in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:n]))
        except ModuleNotFoundError as error:
            if error.name == "torch" and n == len(parts):
                return True  # the module is there, and needs what is not
            continue
        for part in parts[n:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def test_a_recipe_is_short_and_names_its_patch():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    recipes = re.findall(r"^\*\*(A.*?)(?=\n\n)", text, re.DOTALL | re.MULTILINE)
    assert len(recipes) == 5
    patches = {file.name for file in (ROOT / "tests/recipes").glob("*.patch")}
    assert {p for r in recipes for p in re.findall(r"`(\w+\.patch)`", r)} == patches
    assert all(recipe.count("\n") < 15 for recipe in recipes)


DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

CODE = {
    "README.md": "tests/test_docs.py",
    "docs/tutorials/own_environment.md": "tests/test_docs.py",
    "docs/own_algorithm.md": "tests/devices/test_own_algorithm.py",
    "docs/own_device.md": "tests/devices/test_device_kinds.py",
    "docs/own_kernel.md": "tests/algorithms/test_own_kernel.py",
    "docs/steering.md": "a callback; tests/training/test_steering.py has others like it",
    "docs/solver.md": "tests/test_docs.py",
    "docs/sweep.md": "a sweep of many runs; tests/population runs smaller ones",
}
"""Page → the test that runs its blocks of Python, or the reason why none does."""


YAML = {
    "README.md": "tests/test_docs.py",
    "docs/cluster.md": "tests/spec/test_platforms.py",
    "docs/own_algorithm.md": "tests/devices/test_own_algorithm.py",
    "docs/own_device.md": "tests/devices/test_device_kinds.py",
    "docs/pim.md": "tests/devices/test_pim.py",
    "docs/rollouts.md": "tests/algorithms/test_returns.py",
    "docs/tutorials/own_environment.md": "tests/test_docs.py",
}
"""Page → the test that reads its blocks of YAML."""

TYPED = {"pearl", "python", "python3", "pip", "pytest", "ray", "export"}
"""First words of commands in blocks. Of `pearl` and `python -m` a test reads the whole line."""

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", DOCS, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_of_a_page_runs_or_has_a_reason(page):
    name = str(page.relative_to(ROOT))
    languages = {language for language, _ in BLOCK.findall(page.read_text())}
    assert languages <= {"", "bash", "json", "python", "yaml"}
    for language, table in (("python", CODE), ("yaml", YAML)):
        assert (language in languages) == (name in table), name
        where = table.get(name, "a reason")
        if where.endswith(".py"):
            assert page.name in (ROOT / where).read_text(), where


@pytest.mark.parametrize("page", DOCS, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_a_page_exist_with_these_options(page):
    import typer.main

    from pearl.cli import app

    group = typer.main.get_command(app)
    for language, block in BLOCK.findall(page.read_text()):
        if language == "json":
            json.loads(block)
        if language not in ("", "bash"):
            continue
        for line in re.findall(r"^(?:\$ )?pearl (.+)$", block, re.MULTILINE):
            command, *words = shlex.split(line, comments=True)
            group.commands[command].make_context(command, words)  # raises on an unknown option
        for module in re.findall(r"^(?:\w+=\S+ )*python -m ([\w.]+)", block, re.MULTILINE):
            assert there(module.split(".")), module


@pytest.mark.parametrize("page", DOCS, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_without_a_language_are_commands_or_what_they_print(page):
    for language, block in BLOCK.findall(page.read_text()):
        first = block.lstrip("$ ").split(maxsplit=1)[0]
        shown = str(page.relative_to(ROOT)), first
        assert language or first in TYPED or shown in SHOWN, shown


SHOWN = {
    ("docs/tutorials/first_run.md", "dqn_cartpole:"): "the report that `pearl train` printed",
    ("docs/design.md", "pyproject.toml"): "folders; tests/test_layering.py holds the order",
    ("docs/own_algorithm.md", "network:"): "a key of a spec, shown alone",
}
"""(page, first word) of a block that is no command → what the block is."""


@pytest.mark.slow
def test_the_tutorial_of_an_own_environment_trains(tmp_path):
    page = (ROOT / "docs/tutorials/own_environment.md").read_text()
    environment, network, policy = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (spec,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "corridor.py").write_text(environment + network)
    (tmp_path / "corridor.yaml").write_text(spec)
    (tmp_path / "policy.py").write_text(policy)
    pearl_command = [sys.executable, "-m", "pearl"]
    for words in (
        [*pearl_command, "train", "corridor.yaml", "--set", "train.calibrate_after=false"],
        [*pearl_command, "train", "corridor.yaml", "--set", "algorithm.network=corridor:network",
         "--out", "runs/with_network", "--steps", "1000"],
    ):  # fmt: skip
        subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    shown = subprocess.run(
        [sys.executable, "policy.py"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert shown.stdout.strip() == "1"


NOTEBOOKS = sorted(notebooks.FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_is_small_and_was_executed_in_order(file):
    text = file.read_text()
    assert len(text) < 100_000
    assert not re.search(r"/(work|root|home|tmp)/[a-z]", text)
    cells = notebooks.code_cells(file)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert all(o["output_type"] != "error" for cell in cells for o in cell["outputs"])
    for cell in cells:
        compile(cell["source"], file.name, "exec")


@pytest.mark.slow
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_the_code_of_a_notebook_runs(file, tmp_path, monkeypatch, capsys):
    """From data sheets it prints what the notebook has; on this host other figures."""
    monkeypatch.chdir(tmp_path)
    names = {}
    for cell in notebooks.code_cells(file):
        exec(compile(cell["source"], file.name, "exec"), names)
        told = capsys.readouterr().out
        if file.stem == "other_machine":
            assert told == notebooks.printed(cell)
        else:
            assert told.count("\n") == notebooks.printed(cell).count("\n")


def test_the_drawing_of_the_model_moves_without_a_script_and_has_a_text_alternative():
    from xml.etree import ElementTree

    text = (ROOT / "docs/dataflow.svg").read_text()
    tags = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(text).iter()}
    assert {"title", "desc", "style"} <= tags
    assert not {"script", "image", "foreignObject"} & tags
    assert set(re.findall(r"https?://[^\"]+", text)) == {"http://www.w3.org/2000/svg"}
    assert all(f"({what})" in text for what in
               ("prefers-color-scheme: dark", "prefers-reduced-motion: reduce"))  # fmt: skip


def test_the_pages_made_of_the_code_name_every_option_and_key():
    import typer.main

    from pearl.cli import app

    generated = import_module("docs.generated")
    page = generated.commands()
    for name, command in typer.main.get_command(app).commands.items():
        assert command.hidden or f"## pearl {name}\n" in page
        options = [o for p in command.params for o in p.opts if o.startswith("--") and not p.hidden]
        assert [o for o in options if o not in page] == [], name
    schema = json.loads(generated.SPECS.read_text())
    page = generated.specs()
    for part in (schema, *schema["$defs"].values()):
        assert all(f"| `{key}` |" in page for key in part.get("properties", ()))
    page = generated.json_objects()
    for path in ("lanes[].order[].offset", "settings[].iqm", "drift.tasks[].off"):
        assert f"| `{path}` |" in page


def test_the_reference_has_every_public_name():
    page = (ROOT / "docs/reference.md").read_text()
    assert set(re.findall(r"^::: pearl\.(\w+)$", page, re.MULTILINE)) == {*pearl.__all__, "compile"}
