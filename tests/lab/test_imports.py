"""Imports go one way, implementations know nothing of each other, and the core needs torch and numpy alone."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "capsroute"
ORDER = ["routing", "layers", "nets", "data", "encoders", "analysis", "training", "demo", "cli"]
IMPLEMENTATIONS = ["reference", "moments", "blocked", "triton"]
CORE = ["routing", "layers", "nets"]


def imported(path: Path) -> set[str]:
    """Dotted names of what a file imports, those of the package itself from its root on."""
    package = path.relative_to(PACKAGE).parent.parts
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) + 1 - node.level]) if node.level else []
            base += node.module.split(".") if node.module else []
            names |= {".".join([*(["capsroute"] if node.level else []), *base, alias.name]) for alias in node.names}
    return names


def part(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", [p for p in FILES if part(p) in ORDER], ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    later = ORDER[ORDER.index(part(path)) + 1 :]
    parts = {name.split(".")[1] for name in imported(path) if name.startswith("capsroute.")}
    assert not parts & set(later)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_no_implementation_imports_another(name: str) -> None:
    files = [PACKAGE / f"routing/{name}.py", *(PACKAGE / "routing" / name).glob("*.py")]
    found = [i for path in files if path.exists() for i in imported(path)]
    assert found
    others = {f"capsroute.routing.{other}" for other in IMPLEMENTATIONS if other != name}
    assert not others & {".".join(i.split(".")[:3]) for i in found}


def test_only_the_place_of_data_is_read_from_a_variable_of_our_own() -> None:
    found = {name for path in FILES for name in re.findall(r"\bCAPSROUTE_[A-Z]+", path.read_text())}
    assert found == {"CAPSROUTE_DATA"}


def test_the_core_needs_torch_and_numpy_alone() -> None:
    """In a process where nothing else can be imported; what torch itself imports is torch's affair."""
    script = """
import sys, torch, numpy
known = set(sys.modules)
class Refuse:
    def find_spec(self, name, path=None, target=None):
        root = name.split(".")[0]
        if root in "typer rich lightning transformers matplotlib sklearn pooch safetensors huggingface_hub".split():
            raise ImportError(f"{name} is not to be imported by the core")
sys.meta_path.insert(0, Refuse())
from capsroute import Routing
Routing(2, 3, 4, n_out=5)(torch.zeros(7), torch.zeros(7, 2, 3))
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=PACKAGE.parent)
