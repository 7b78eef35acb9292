"""README, docs and model cards: examples run, and every path, name, command and option in them exists."""

import functools
import importlib
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import typer.main

from capsroute.lab.cli import app
from capsroute.lab.training.experiments import EXPERIMENTS, make_config
from capsroute.routing import reference
from conftest import ROOT

README = ROOT / "README.md"
PAGES = sorted(
    path
    for pattern in (
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "docs/*.md",
        "results/README.md",
        "capsroute/weights/*/README.md",
    )
    for path in ROOT.glob(pattern)
)
FOLDERS = ("capsroute", "tests", "benchmarks", "results", "docs", "examples")
CHROMIUM = Path("/usr/bin/chromium")

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def code_blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def inline_code(page: Path) -> list[str]:
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose)]


def shell_commands(page: Path) -> Iterator[list[str]]:
    """Yield the words of every command in shell blocks and inline code, without comments and redirections."""
    lines = [line for block in code_blocks(page, "sh") for line in block.splitlines()]
    for line in [*lines, *inline_code(page)]:
        if line.startswith(("capsroute ", "make ", "python ")):
            yield shlex.split(line.partition(" < ")[0], comments=True)


def resolve_name(name: str) -> Any:
    """Import a dotted name: a module, or an attribute of one."""
    module, _, attribute = name.rpartition(".")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return getattr(resolve_name(module), attribute)


def test_readme_is_short() -> None:
    assert len(README.read_text().split()) <= 900


def test_readme_example_has_ten_lines_and_runs(capsys: pytest.CaptureFixture[str]) -> None:
    example = code_blocks(README, "python")[0]
    assert len(example.splitlines()) == 10
    exec(example, {})
    assert capsys.readouterr().out == "torch.Size([2, 10]) torch.Size([2, 10, 4, 4]) torch.Size([2, 10, 4, 4])\n"


@pytest.mark.parametrize("name", ["index", "credit", "design", "heads", "language_models", "own_model", "predict"])
def test_python_blocks_run(name: str) -> None:
    namespace: dict[str, Any] = {}
    for block in code_blocks(ROOT / f"docs/{name}.md", "python"):
        exec(block, namespace)
    assert namespace


@pages
def test_python_blocks_compile(page: Path) -> None:
    for block in code_blocks(page, "python"):
        compile(block, str(page), "exec")


@pages
def test_paths_exist(page: Path) -> None:
    """Links of files outside of docs/ are checked here; those of docs/ by `mkdocs build --strict`."""
    for code in inline_code(page):
        if re.fullmatch(rf"({'|'.join(FOLDERS)})/[\w./*-]*", code):
            assert list(ROOT.glob(code)), code
    if page.parent != ROOT / "docs":
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            assert link.startswith("https://") or (page.parent / link).exists(), link


@pages
def test_names_exist(page: Path) -> None:
    for name in re.findall(r"\bcapsroute(?:\.\w+)+", page.read_text()):
        if not name.endswith((".py", ".md")):
            resolve_name(name)


def test_api_page_lists_what_exists() -> None:
    text = (ROOT / "docs/api.md").read_text()
    imports = re.findall(r"^\| `([\w.]+)` \| (.*) \|$", text, re.MULTILINE)
    sections = re.findall(r"^::: ([\w.]+)\n(?:    .*\n)*?(?:      members: \[(.*)\]|$)", text, re.MULTILINE)
    assert len(sections) == text.count("::: ")
    for name, members in [*imports, *sections]:
        for member in re.findall(r"\w+", members):
            assert hasattr(resolve_name(name), member), f"{name}.{member}"
    documented = [resolve_name(name) for name, _ in sections]
    for name, members in imports:
        assert all(getattr(resolve_name(name), member) in documented for member in re.findall(r"\w+", members)), name


def test_design_lists_files_that_exist() -> None:
    folders: list[str] = []
    tree = code_blocks(ROOT / "docs/design.md", "text")[0]
    for indent, name in re.findall(r"^( *)([\w./]+) {2,}", tree, re.MULTILINE):
        folders[len(indent) // 2 :] = [name]
        assert ROOT.joinpath(*folders).exists(), folders
    assert folders


def test_design_names_every_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    section = (ROOT / "docs/design.md").read_text().partition("## Dependencies")[2].partition("\n## ")[0]
    named = " ".join(re.findall(r"^\|[^|]*\| (\w[^|]+) \|", section, re.MULTILINE)[1:])  # without the header
    assert set(re.findall(r"[\w-]+", named)) | {"capsroute"} == {re.split(r"[^\w-]", r)[0] for r in requirements}


def test_pins_are_exact_and_have_no_address() -> None:
    """As `pip-audit --no-deps --disable-pip` needs them."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert not [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", pin)]


@pages
def test_commands_exist(page: Path) -> None:
    root = typer.main.get_command(app)
    for words in shell_commands(page):
        program, *arguments = words
        if program == "make":
            targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
            assert arguments[0] in targets, words
        elif program == "python":
            assert (ROOT / arguments[0]).exists(), words
        elif arguments[0] not in ("COMMAND", "--version"):
            check_command(root, arguments)


def check_command(root: Any, words: list[str]) -> None:
    """Check that a command, its options and the settings it changes exist."""
    command, names = root, list(words)
    while hasattr(command, "commands") and names:
        assert names[0] in command.commands, words
        command = command.commands[names.pop(0)]
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for word in names:
        assert not word.startswith("--") or word in options | {"--help"}, (word, words)
    for setting in (names[k + 1] for k, word in enumerate(names) if word == "--set"):
        field = setting.partition("=")[0]
        assert field == "FIELD" or any(hasattr(config, field) for config in all_configs()), (field, words)


@functools.cache
def all_configs() -> list[Any]:
    return [make_config(experiment) for experiment in EXPERIMENTS]


def test_every_command_is_documented() -> None:
    text = (ROOT / "docs/commands.md").read_text()
    root: Any = typer.main.get_command(app)
    for name in root.commands:
        assert f"`capsroute {name}`" in text, name


def test_equations_map_to_functions() -> None:
    rows = re.findall(
        r"^\| (?:\(\d\)|Alg\. 1) \|.*\| (.+?) \|$", (ROOT / "docs/algorithm.md").read_text(), re.MULTILINE
    )
    assert len(rows) == 8
    for name in re.findall(r"`(\w+)`(?! of)", " ".join(rows)):
        assert callable(getattr(reference, name)), name


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    subprocess.run(command, check=True, cwd=ROOT)
    return folder


def test_site_loads_nothing_from_other_hosts(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(r"<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=\"([^\"]+)", page.read_text())
        assert loaded
        assert not [url for url in loaded if url.startswith(("http:", "https:", "//"))], page


def test_search_works_from_disk(site: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM.exists():
        pytest.skip(f"no {CHROMIUM}")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.goto((site / "index.html").as_uri())
        page.click(".md-search__input")
        page.keyboard.type("packed")
        link = page.wait_for_selector(".md-search-result__link[href*=own_model]", state="attached", timeout=20_000)
        browser.close()
    assert link is not None
