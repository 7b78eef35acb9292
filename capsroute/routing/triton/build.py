"""Compiles `native.cpp` while Python serves: half a minute, once per machine and version of PyTorch.

It lies among what Triton compiled. A machine without a C++ compiler or Python's headers leaves everything to Python;
results are the same to the last bit.
"""

import atexit
import ctypes
import hashlib
import os
import shutil
import signal
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from threading import Event, Thread
from typing import Any

import torch
from triton import knobs

SOURCE = Path(__file__).with_name("native.cpp")
NAME = "capsroute_native"
FLAGS = ("-std=c++20", "-O2", "-fPIC", "-shared", "-DAT_PER_OPERATOR_HEADERS")
LIBRARIES = ("-ltorch_python", "-ltorch", "-ltorch_cpu", "-lc10")
RUNNING: set[subprocess.Popen[str]] = set()
ENDING = Event()
"""Compilers, and whether this process ends."""
CALLED = ("cuLaunchKernel", "cuLaunchCooperativeKernel", "cuStreamIsCapturing")


class NoNativeError(Exception):
    """Says why there is none."""


class Build:
    """The module as soon as it is there, `None` before and where there will be none; `why` then says why."""

    def __init__(self, python_backward: Callable[..., Any]):
        self.module: Any = None
        self.why = "it is being compiled"
        self.python_backward = python_backward
        self.thread = Thread(target=self._run, name=NAME, daemon=True)
        atexit.register(self._end)
        self.thread.start()

    def wait(self) -> str:
        """Until it is decided; why there is none, or nothing."""
        self.thread.join()
        return self.why

    def _end(self) -> None:
        """Before Python does: a thread that it finds in the midst of loading takes the process down with it."""
        ENDING.set()
        for process in [*RUNNING]:
            stop(process)
        self.thread.join()

    def _run(self) -> None:
        try:
            called = addresses()
            module = load(compiled(Path(knobs.cache.dir)))
            module.set_up(*called, self.python_backward)
            self.module, self.why = module, ""
        except (NoNativeError, OSError, ImportError, AttributeError) as error:  # or another version of CUDA or Triton
            self.why = str(error)


@lru_cache
def begun(python_backward: Callable[..., Any]) -> Build:
    """The only one of a process."""
    return Build(python_backward)


def addresses() -> list[int]:
    """Of functions of CUDA's driver, which comes with that of the GPU."""
    library = ctypes.CDLL("libcuda.so.1")
    return [ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in CALLED]


def compiled(folder: Path) -> Path:
    """The compiled file, made in a folder unless it is there."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        raise NoNativeError("there is no C++ compiler: install g++, or name one in CXX")
    base, headers = Path(torch.__file__).parent, sysconfig.get_path("include")
    made_of = SOURCE.read_bytes(), torch.__version__, sysconfig.get_config_var("SOABI"), base, compiler, FLAGS
    file = folder / f"{NAME}-{hashlib.sha256(repr(made_of).encode()).hexdigest()[:16]}.so"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        included = (base / "include", base / "include/torch/csrc/api/include", headers)
        with tempfile.TemporaryDirectory(dir=folder) as aside:  # so that nobody ever sees half a file
            target = Path(aside, file.name)
            compile_with(
                compiler, *FLAGS, str(SOURCE), *[f"-I{path}" for path in included], f"-L{base / 'lib'}", *LIBRARIES,
                "-o", str(target),
            )  # fmt: skip
            target.replace(file)
    return file


def compile_with(*command: str) -> None:
    """Run a compiler, which ends when this process does, with all that it started."""
    if ENDING.is_set():
        raise NoNativeError("this process ends")
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    RUNNING.add(process)
    if ENDING.is_set():
        stop(process)
    _, said = process.communicate()
    RUNNING.discard(process)
    if process.returncode:
        raise NoNativeError(f"{command[0]} failed: {said.strip()[-2000:]}")


def stop(process: subprocess.Popen[str]) -> None:
    """And all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def load(file: Path) -> Any:
    """A compiled module."""
    spec = spec_from_file_location(NAME, file, loader=ExtensionFileLoader(NAME, str(file)))
    assert spec
    module = module_from_spec(spec)
    assert spec.loader
    spec.loader.exec_module(module)
    return module
