"""Calls that run on the machines of a Ray cluster."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ..errors import UserError, import_extra
from .config import SettingError


class Cluster(NamedTuple):
    """Machines that Ray manages, and what a call needs of them."""

    address: str  # local: this machine alone; auto: the cluster it belongs to; or HOST:PORT
    cpus: int = 1
    gpus: float = 0  # 0.5: two calls share one


def map_on_cluster(
    cluster: Cluster, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]
) -> Iterator[tuple[int, Any]]:
    """Yield the position of each call's arguments and its result, those that end first coming first.

    Calls run in this process's folder, which every machine must have. Ray repeats those whose process dies;
    an error of the function itself ends them all.
    """
    ray = import_extra("ray")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster that starts here reports to nobody
    try:
        ray.init(cluster.address)
    except (ConnectionError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"ray: expected local, auto or the address of a cluster, got {cluster.address!r}; {reason}"
        ) from error
    try:
        check_resources(cluster, ray.cluster_resources())
        task = ray.remote(num_cpus=cluster.cpus, num_gpus=cluster.gpus)(call_like_here)
        here = os.getcwd(), os.environ.get("CAPSROUTE_DATA", ""), sys.argv
        waiting = {task.remote(*here, function, arguments): k for k, arguments in enumerate(calls)}
        while waiting:
            (done,), _ = ray.wait(list(waiting))
            yield waiting.pop(done), ray.get(done)
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, UserError) else error from None
    finally:
        ray.shutdown()


def check_resources(cluster: Cluster, available: dict[str, float]) -> None:
    """Refuse what this machine will never have; a cluster may grow."""
    for name, wanted in (("CPU", cluster.cpus), ("GPU", cluster.gpus)):
        if cluster.address == "local" and wanted > available.get(name, 0):
            most = available.get(name, 0)
            raise SettingError(f"{name.lower()}s: expected at most {most:g}, which this machine has, got {wanted:g}")


def call_like_here(folder: str, data: str, command: list[str], function: Callable[..., Any], arguments: Any) -> Any:
    """Call a function where Ray has started a process, with the folder and the command of the one that asked."""
    os.chdir(folder)
    sys.argv = command  # which runs record
    if data:
        os.environ["CAPSROUTE_DATA"] = data
    return function(*arguments)
