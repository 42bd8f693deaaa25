"""Federations over NVIDIA FLARE: start kits, policies, jobs without code, and a loop that submits a job again.

Needs `pip install 'fedamp_jax[flare]'`. `docs/silos.md` walks through it.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from fedamp_jax.files import local_file, replace_file
from fedamp_jax.silos.site import FOLDER, SETTINGS, Settings

APP = "fedamp_jax.silos.flare_app"
_COLLAB = (
    "nvflare.collab.runtime.executor.CollabExecutor",
    "nvflare.collab.runtime.controller.CollabController",
)
_SILENT = 30
"""Seconds without a sign of life after which the server takes a site for dead; sites give one every 10 s or so."""
_BUILDERS = [
    {"path": "nvflare.lighter.impl.workspace.WorkspaceBuilder", "args": {"template_file": ["master_template.yml"]}},
    {"path": "nvflare.lighter.impl.static_file.StaticFileBuilder", "args": {"config_folder": "config"}},
    {"path": "nvflare.lighter.impl.cert.CertBuilder"},
    {"path": "nvflare.lighter.impl.signature.SignatureBuilder"},
]


def provision(federation: str | os.PathLike, folder: str | os.PathLike) -> Path:
    """Make a start kit for each party: certificates, addresses, and a policy that refuses all code.

    Args:
        federation: a YAML file: `name`, `server` (a host name that all sites reach), `port`, `admin` (an e-mail
            address), and `sites`, the names of the sites with the organization of each.
        folder: where the kits go. The certificates' root key stays there, too: keep it where only the one who runs the
            federation gets at it.

    Returns:
        The folder with the kits, one folder for each party.

    Raises:
        ValueError: if the file lacks something, or the folder holds kits of such a federation already.
    """
    path = local_file(federation, "the federation's file")
    described = yaml.safe_load(path.read_text())
    wanted = {"name", "server", "port", "admin", "sites"}
    if not isinstance(described, dict) or set(described) != wanted or not described["sites"]:
        raise ValueError(f"{path} must have {', '.join(sorted(wanted))}, and at least one site")
    sites, port = described["sites"], int(described["port"])
    server = {"name": described["server"], "type": "server", "org": "server", "fed_learn_port": port}
    clients = [{"name": site, "type": "client", "org": org} for site, org in sites.items()]
    admin = {"name": described["admin"], "type": "admin", "org": "server", "role": "project_admin"}
    project = {"api_version": 3, "name": described["name"], "participants": [server, *clients, admin]}
    folder = Path(folder).absolute()
    if (folder / described["name"]).exists():
        raise ValueError(f"{folder} holds kits of {described['name']!r} already: give another folder")
    folder.mkdir(parents=True, exist_ok=True)
    project_file = folder / "project.yml"
    replace_file(project_file, yaml.safe_dump(project | {"builders": _BUILDERS}).encode())
    command = [sys.executable, "-m", "nvflare.lighter.provision", "-p", str(project_file), "-w", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    kits = folder / described["name"] / "prod_00"
    if done.returncode or not kits.is_dir():
        raise RuntimeError(f"nvflare provision failed: {(done.stderr or done.stdout).strip()[-1000:]}")
    for name in (described["server"], *sites):
        _restrict(kits / name)
    return kits


def _restrict(kit: Path) -> None:
    """The site's own policy: no code from a job, no class but these, no logs to others."""
    local = kit / "local"
    roles = json.loads((local / "authorization.json.default").read_text())
    allowed = dict.fromkeys(("submit_job", "manage_job", "view", "operate", "download_job", "clone_job"), "any")
    roles["permissions"] = {"project_admin": allowed | {"byoc": "none", "shell_commands": "none"}}
    resources = json.loads((local / "resources.json.default").read_text())
    resources["class_allow_list"] = [*_COLLAB, f"{APP}."]
    resources["allow_log_streaming"] = False
    if "servers" in resources:
        for server in resources["servers"]:
            server["heart_beat_timeout"] = _SILENT
    replace_file(local / "authorization.json", json.dumps(roles, indent=1).encode())
    replace_file(local / "resources.json", json.dumps(resources, indent=1).encode())


def start(
    kit: str | os.PathLike, settings: str | os.PathLike, folder: str | os.PathLike, log: str | os.PathLike | None = None
) -> subprocess.Popen:
    """Start a party, the server or a site, in a process of its own.

    Args:
        kit: its start kit.
        settings: its `fedamp_jax.silos.Settings` file.
        folder: where it keeps what must survive: a site its part of the state and its model, the server its checkpoints
            and results.
        log: a file for what it prints; None: this process's output.

    Returns:
        The process, which leads a process group: end it with `stop`.
    """
    kit, folder = Path(kit).absolute(), Path(folder).absolute()
    Settings(settings)  # so that an error in it is seen here
    folder.mkdir(parents=True, exist_ok=True)
    _store_jobs(kit)
    environment = {
        **os.environ, SETTINGS: str(Path(settings).absolute()), FOLDER: str(folder),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }  # fmt: skip
    command = ["bash", str(kit / "startup" / "sub_start.sh"), "--once"]
    with open(log, "a") if log is not None else contextlib.nullcontext() as out:
        return subprocess.Popen(command, cwd=kit, env=environment, stdout=out, stderr=out, start_new_session=True)


def _store_jobs(kit: Path) -> None:
    """Let a server keep its jobs in its kit: FLARE's usual folder in /tmp is that of all servers of a machine."""
    path = kit / "local" / "resources.json"
    resources = json.loads(path.read_text())
    if "snapshot_persistor" not in resources:
        return
    resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(kit / "snapshots")
    for component in resources["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str(kit / "jobs")
    replace_file(path, json.dumps(resources, indent=1).encode())


def stop(processes: Sequence[subprocess.Popen], seconds: float = 10.0) -> None:
    """End parties that `start` has started, and the processes of their jobs, which lead groups of their own."""
    import psutil

    everything = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            one = psutil.Process(process.pid)
            everything += [one, *one.children(recursive=True)]
    for signalled in ("terminate", "kill"):
        for one in everything:
            with contextlib.suppress(psutil.NoSuchProcess):
                getattr(one, signalled)()
        _, everything = psutil.wait_procs(everything, timeout=seconds)
    for process in processes:
        process.wait()


def job(folder: str | os.PathLike, **arguments: Any) -> Path:
    """Write a job: three JSON files that name the installed classes, and no code.

    Args:
        folder: where to; what was there of an earlier one is replaced.
        **arguments: of `fedamp_jax.silos.flare_app.Server`.
    """
    folder = Path(folder)
    shutil.rmtree(folder, ignore_errors=True)
    calls = {"collab_obj_ids": [], "props": {}}
    filters = {"format_version": 2, "task_data_filters": [], "task_result_filters": []}
    controller = {"id": "controller", "path": _COLLAB[1], "args": {"server_obj_id": "_server", **calls}}
    executor = {"tasks": ["*"], "executor": {"path": _COLLAB[0], "args": {"client_obj_id": "_client", **calls}}}
    server = {"id": "_server", "path": f"{APP}.Server", "args": arguments}
    client = {"id": "_client", "path": f"{APP}.Client", "args": {}}
    meta = {"name": "fedamp_jax", "resource_spec": {}, "min_clients": 1, "deploy_map": {"app": ["@ALL"]}}
    files = {
        "meta.json": meta,
        "app/config/config_fed_server.json": {**filters, "workflows": [controller], "components": [server]},
        "app/config/config_fed_client.json": {**filters, "executors": [executor], "components": [client]},
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        replace_file(folder / name, json.dumps(content, indent=1).encode())
    return folder


def submit(
    admin: str | os.PathLike,
    described: str | os.PathLike,
    finished: Callable[[], bool],
    *,
    sites: Sequence[str],
    tries: int = 10,
    seconds: float = 3600.0,
    say: Callable[[str], None] = print,
) -> None:
    """Submit a job, and again if it ends before it is finished, or if a site comes back that was not in it.

    FLARE ends a job when a site's process dies, and goes on with none after its server was restarted. The new job
    continues from the server's last checkpoint.

    Args:
        admin: the admin's start kit, whose folder is named after its e-mail address.
        described: the job, as of `job`.
        finished: whether its results are there.
        sites: their names; the first job waits up to a minute for all of them.
        tries: jobs at most.
        seconds: for all of them.
        say: called with a line of text for each event.

    Raises:
        RuntimeError: no job finished it.
    """
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    admin, until = Path(admin).absolute(), time.monotonic() + seconds
    submitted, last, running = 0, "the server cannot be reached", None
    while (submitted < tries or running) and time.monotonic() < until and not finished():
        session = None
        try:
            session = new_secure_session(admin.name, str(admin))
            since = session.get_system_info().server_info.start_time
            if running is None or running.since != since:  # a server that was started again has forgotten its jobs
                if submitted and not last.startswith("ended"):  # until it is noticed, a dead site looks connected
                    time.sleep(_SILENT + 10)
                here = _gathered(session, set(sites), min(until, time.monotonic() + (5 if submitted else 60)))
                running = _Running(session.submit_job(str(Path(described).absolute())), here, since)
                submitted += 1
                say(f"job {submitted} of at most {tries}: {running.number}, with {', '.join(sorted(here))}")
            last, running = _watched(session, running, finished, set(sites), until), None
        except Exception as error:  # FLARE's, of many kinds, while the server is not there
            last = f"{type(error).__name__}: {error}"
            time.sleep(2)
        finally:
            with contextlib.suppress(Exception):
                session.close()  # pyright: ignore[reportOptionalMemberAccess]
        say(f"job {submitted}: {last}")
    if not finished():
        raise RuntimeError(f"{submitted} jobs did not finish it; the last one: {last}. The server's log says more")


class _Running(NamedTuple):
    """A job: its number, the sites that were there, and when its server was started."""

    number: str
    here: set[str]
    since: Any


def _connected(session: Any) -> set[str]:
    return {client.name for client in session.get_system_info().client_info}


def _gathered(session: Any, sites: set[str], until: float) -> set[str]:
    """Wait for sites; returns those that are there."""
    while not sites <= _connected(session) and time.monotonic() < until:
        time.sleep(0.5)
    return _connected(session) & sites


def _watched(session: Any, running: _Running, finished: Callable[[], bool], sites: set[str], until: float) -> str:
    """Wait for a job; returns how it ended. It is ended if one of its sites is gone, or another one comes back."""
    away = sites - running.here
    while time.monotonic() < until:
        status = session.get_job_meta(running.number).get("status", "unknown")
        if finished():
            return "finished"
        if status.startswith("FINISHED"):
            return status
        connected = _connected(session)
        away |= sites - connected
        if gone := running.here - connected:  # the next job knows beforehand that it is offline
            session.abort_job(running.number)
            return f"ended, as {', '.join(sorted(gone))} is gone"
        if back := away & connected:
            session.abort_job(running.number)
            return f"ended, as {', '.join(sorted(back))} came back"
        time.sleep(0.5)
    session.abort_job(running.number)
    return "took too long"
