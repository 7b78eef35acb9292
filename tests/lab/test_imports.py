"""Two floors: imports go one way, implementations know nothing of each other, the library needs torch and numpy alone.

Imports inside functions count like those at the top of a file.
"""

import ast
import graphlib
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import ROOT

LIBRARY = ("routing", "layers", "credit", "heads", "nets", "pretrained", "testing", "__init__")
LAB = (
    *("errors", "formatting", "atomic_files", "progress", "environment_variables"),
    *("data", "encoders", "preprocessing", "baselines", "rivals", "variants", "lm", "analysis"),
    *("training", "inference", "inputs", "html", "explain", "export", "report", "serve", "demo", "cli", "__init__"),
)
ORDER = [*LIBRARY, *(f"lab.{part}" for part in LAB), "__main__"]  # each may import those before it
IMPLEMENTATIONS = ("reference", "moments", "blocked", "triton")
ALLOWED = {*sys.stdlib_module_names, "torch", "numpy", "capsroute"}
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "capsroute").rglob("*.py"))
}
TREES = {name: ast.parse(path.read_text()) for name, path in FILES.items()}
modules = pytest.mark.parametrize("module", FILES)


def find_imports(module: str) -> Iterator[tuple[str, str]]:
    """Yield module and name of everything that a module imports, wherever in the file; no name for a module itself."""
    package = module.split(".") if FILES[module].name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            source = ".".join([*base, *(node.module or "").split(".")]).rstrip(".")
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                yield (inner, "") if inner in FILES else (source, alias.name)


def imported_modules(module: str) -> set[str]:
    """Return the modules of the package that a module imports."""
    return {name for name, _ in find_imports(module) if name in FILES}


def find_part(module: str) -> str:
    """Return the place of a module in the order: its first part, or the first two in the lab."""
    _, *parts = module.split(".")
    if parts[:1] == ["lab"]:
        return ".".join(parts[:2]) if parts[1:] else "lab.__init__"
    return parts[0] if parts else "__init__"


def in_library(module: str) -> bool:
    return find_part(module) in LIBRARY


def test_order_names_every_module() -> None:
    assert {find_part(module) for module in FILES} == set(ORDER)


@modules
def test_imports_go_one_way(module: str) -> None:
    later = ORDER[ORDER.index(find_part(module)) + 1 :]
    assert not {name for name in imported_modules(module) if find_part(name) in later}


def test_no_import_is_circular() -> None:
    order = graphlib.TopologicalSorter({module: imported_modules(module) for module in FILES}).static_order()
    assert set(order) == set(FILES)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_no_implementation_imports_another(name: str) -> None:
    own = [module for module in FILES if f"{module}.".startswith(f"capsroute.routing.{name}.")]
    found = {
        imported.split(".")[2] for module in own for imported in imported_modules(module) if "routing." in imported
    }
    assert own
    assert found
    assert not found & {*IMPLEMENTATIONS, "api"} - {name}


@pytest.mark.parametrize("module", [module for module in FILES if in_library(module)])
def test_library_imports_torch_and_numpy_alone(module: str) -> None:
    """Packages of extras come through one helper, which names the extra; kernels need their compiler."""
    allowed = ALLOWED | ({"triton"} if module.startswith("capsroute.routing.triton.") else set())
    assert {name.split(".")[0] for name, _ in find_imports(module)} <= allowed


@modules
def test_private_names_stay_in_their_module(module: str) -> None:
    assert not [(source, name) for source, name in find_imports(module) if source in FILES and is_private(name)]
    defined = private_names()
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr in defined:
            assert module in defined[node.attr], ast.unparse(node)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("_")


def private_names() -> dict[str, set[str]]:
    """Return the private names of functions, classes, variables and attributes, and the modules that define each."""
    defined: dict[str, set[str]] = defaultdict(set)
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                defined[node.name].add(module)
            elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
                defined[node.attr if isinstance(node, ast.Attribute) else node.id].add(module)
    return {name: where for name, where in defined.items() if is_private(name)}


def test_only_data_folder_is_read_from_our_own_variable() -> None:
    found = {name for path in FILES.values() for name in re.findall(r"\bCAPSROUTE_[A-Z]+", path.read_text())}
    assert found == {"CAPSROUTE_DATA"}


def test_library_runs_where_nothing_else_can_be_imported(tmp_path: Path) -> None:
    """A layer, its gradients, saving and loading, beside whatever torch and numpy themselves have imported."""
    script = f"""
import sys, torch, numpy
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in {ALLOWED!r}:
            raise ImportError(f"the library must not import {{name}}")
sys.meta_path.insert(0, Refuse())
import capsroute.nets, capsroute.credit, capsroute.testing
from capsroute import Routing
layer, other = (Routing(2, 3, 4, n_out=5) for _ in range(2))
mu_inp = torch.randn(7, 2, 3, requires_grad=True)
out = layer(torch.zeros(7), mu_inp)
out.a.sum().backward()
assert all(t.grad.isfinite().all() for t in (mu_inp, *layer.parameters()))
torch.save(layer.state_dict(), "layer.pt")
other.load_state_dict(torch.load("layer.pt", weights_only=True))
assert torch.equal(other(torch.zeros(7), mu_inp).mu, out.mu)
assert not [name for name in sys.modules if name.startswith("capsroute.lab")]
"""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); exec({script!r})"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
