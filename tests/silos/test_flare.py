"""Federations over NVIDIA FLARE on this machine: equal to the simulation, and what happens if a party is lost."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import fedamp_jax
from fedamp_jax.driver.evaluation import personal_models
from fedamp_jax.driver.rounds import round_keys
from fedamp_jax.silos import Settings

pytest.importorskip("nvflare", reason="needs pip install 'fedamp_jax[flare]'")
psutil = pytest.importorskip("psutil")
# FLARE's own threads warn of what its dependencies deprecate.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

from fedamp_jax.silos import flare  # noqa: E402 - needs nvflare

HERE = Path(__file__).parents[2] / "examples" / "silos"
SITES = ["north", "east", "south"]
METHODS = ["FedAvg", "FedAMP", "HeurFedAMP", "SCAFFOLD", "Ditto", "FedPer", "PFLEGO", "FedFomo"]


def free_port():
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return one.getsockname()[1]


SLOW = """
import sys

sys.path.insert(0, {here!r})
import optax
import fedamp_jax
from hospital import FEATURES, data


def method(name):
    task = fedamp_jax.models.mlp(classes=2, shape=(FEATURES,), hidden=(32,))
    solver = fedamp_jax.Solver(optax.sgd(0.05), epochs=500, batch_size=32)
    make = getattr(fedamp_jax, name.lower())
    return task, make(task, solver, **({{"sigma": 10.0, "self_weight": 0.5}} if name == "FedAMP" else {{}}))
"""
"""Settings whose rounds take about a second, and plain gradient steps, which do not amplify rounding differences."""


class Federation:
    """Start kits in a folder, and the parties that run."""

    def __init__(self, folder, name="hospitals", settings=HERE / "hospital.py"):
        self.folder, self.running, self.settings = folder, {}, settings
        described = {"name": name, "server": "localhost", "port": free_port(), "admin": "admin@localhost.org"}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "federation.yml").write_text(json.dumps(described | {"sites": dict.fromkeys(SITES, "hospital")}))
        self.kits = flare.provision(folder / "federation.yml", folder / "kits")

    def start(self, *names):
        for name in names:
            log = self.folder / f"{name}.log"
            kept = self.folder / "kept" / name
            self.running[name] = flare.start(self.kits / name, self.settings, kept, log=log)

    def signal(self, name, number):
        """To the party and the process of its job."""
        party = psutil.Process(self.running[name].pid)
        for one in (*party.children(recursive=True), party):
            one.send_signal(number)

    def kill(self, name):
        self.signal(name, signal.SIGKILL)
        self.running.pop(name).wait()

    def submit(self, methods, rounds, while_waiting=lambda: None, **other):
        results = [self.result(name) for name in methods]
        job = flare.job(self.folder / "job", methods=methods, rounds=rounds, sites=SITES, **other)
        said = []

        def finished():
            while_waiting()
            return all(path.exists() for path in results)

        admin = self.kits / "admin@localhost.org"
        flare.submit(admin, job, finished, sites=SITES, seconds=400, say=said.append)
        return [json.loads(path.read_text()) for path in results], said

    def result(self, method):
        return self.folder / "kept" / "localhost" / method / "result.json"

    def jobs(self, method):
        """`[(rounds that were done, sites)]` of the jobs that have begun."""
        log = (self.folder / "localhost.log").read_text()
        found = re.findall(rf"{method}: goes on after round (\d+) with (.*)", log)
        return [(int(done), here.split(", ")) for done, here in found]

    def counted(self, method, rounds):
        """`[rounds, M]` bool, which sites counted, by the server's log: those of the job whose answers came."""
        found = np.ones((rounds, len(SITES)), bool)
        pattern = rf"{method}: goes on after round (\d+) with (.*)|client (\d) does not count in round (\d+)"
        for done, here, row, number in re.findall(pattern, (self.folder / "localhost.log").read_text()):
            if here:  # rounds after the last checkpoint are run again
                found[int(done) :] = [site in here.split(", ") for site in SITES]
            else:
                found[int(number) - 1, int(row)] = False
        return found

    def versions(self, site, method):
        return sorted(int(p.stem[6:]) for p in (self.folder / "kept" / site / method).glob("round-*.npz"))


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    subprocess.run([sys.executable, HERE / "make_tables.py", folder], check=True)
    os.environ["HOSPITAL_TABLES"] = str(folder)
    yield folder
    del os.environ["HOSPITAL_TABLES"]


@pytest.fixture
def federation(tables, tmp_path, request):
    path = HERE / "hospital.py"
    if "slow_rounds" in request.fixturenames:
        path = tmp_path / "slow.py"
        path.write_text(SLOW.format(here=str(HERE)))
    made = Federation(tmp_path, settings=path)
    try:
        made.start("localhost", *SITES)
        yield made
    finally:
        flare.stop(list(made.running.values()))


@pytest.fixture
def slow_rounds():
    """That the federation runs with `SLOW`."""


def simulation(path, method, rounds, online=None):
    """The run of one program that has all tables; `online`: a mask of the sites for each round."""
    settings = Settings(path)
    task, algorithm = settings.method(method)
    pairs = [settings.module.data(site) for site in SITES]
    train, test = (
        fedamp_jax.data.from_lists([np.asarray(d.x) for d in side], [np.asarray(d.y) for d in side], classes=2)
        for side in zip(*pairs, strict=True)
    )
    result, state = None, None
    for k, mask in enumerate([[True] * 3] * rounds if online is None else online):
        here = train._replace(online=np.array(mask))
        result = fedamp_jax.run(task, algorithm, here, test, rounds=k + 1, state=state, progress=False)
        state = result.state
    key = round_keys(jax.random.key(0), rounds - 1)[2]
    return result, personal_models(algorithm, key, state, train, 3)


def session_of(federation):
    """The admin's, as soon as the server is there."""
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    admin, until = federation.kits / "admin@localhost.org", time.monotonic() + 60
    while True:
        try:
            return new_secure_session(admin.name, str(admin))
        except Exception:
            assert time.monotonic() < until
            time.sleep(1)


def test_eight_methods_equal_the_simulation(federation):
    """After three rounds: accuracies, losses, and each site's own model. Failed with scalars that became vectors."""
    found, _ = federation.submit(METHODS, rounds=3)
    for method, result in zip(METHODS, found, strict=True):
        expected, models = simulation(federation.settings, method, 3)
        np.testing.assert_allclose(result["metrics"]["accuracy"][-1], expected.accuracy[-1], atol=1e-5)
        np.testing.assert_allclose(result["loss"][-1], expected.loss[-1], rtol=1e-5)
        for i, site in enumerate(SITES):
            saved = fedamp_jax.load_models(federation.folder / "kept" / site / method / "model.npz",
                                           Settings(federation.settings).method(method)[0])  # fmt: skip
            for a, b in zip(jax.tree.leaves(saved.models), jax.tree.leaves(models), strict=True):
                np.testing.assert_allclose(a[0], b[i], atol=1e-5)


def test_a_site_is_killed_and_comes_back(federation, slow_rounds):
    """FLARE ends the job; the next one goes on without the site, and one more begins when it is there again."""
    rounds = 60
    killed, back = [], []

    def watch():
        newest = max(federation.versions("north", "Ditto"), default=0)
        if newest >= 2 and not killed:
            federation.kill("south")
            killed.append(newest)
        if killed and not back and len(federation.jobs("Ditto")) > 1 and newest > killed[0] + 2:
            federation.start("south")
            back.append(newest)

    (federation.folder / "said").write_text("")
    results = federation.result("Ditto")
    job = flare.job(federation.folder / "job", methods=["Ditto"], rounds=rounds, sites=SITES, deadline=15.0)

    def say(text):
        with open(federation.folder / "said", "a") as file:
            file.write(text + "\n")

    def finished():
        watch()
        return results.exists()

    flare.submit(federation.kits / "admin@localhost.org", job, finished, sites=SITES, seconds=400, say=say)
    said = (federation.folder / "said").read_text()
    assert killed
    assert back
    assert "with east, north\n" in said
    assert "ended, as south came back" in said
    found = json.loads(results.read_text())
    assert found["rounds"] == list(range(1, rounds + 1))
    online = federation.counted("Ditto", rounds)
    assert not online.all()
    assert online[-1].all()
    expected, _ = simulation(federation.settings, "Ditto", rounds, online)
    np.testing.assert_allclose(found["metrics"]["accuracy"][-1], expected.accuracy[-1], atol=1e-5)
    np.testing.assert_allclose(found["loss"][-1], expected.loss[-1], rtol=1e-4)


def test_the_server_is_killed_and_started_again(federation, slow_rounds):
    """Its checkpoint says which state it has of each site. Failed when that was not in it."""
    rounds, killed = 10, []

    def watch():
        newest = max(federation.versions("north", "FedAMP"), default=0)
        if newest >= 3 and not killed:
            federation.kill("localhost")
            killed.append(newest)
            time.sleep(1)
            federation.start("localhost")

    [found], said = federation.submit(["FedAMP"], rounds, watch)
    assert killed
    assert len([line for line in said if "at most" in line]) > 1
    expected, _ = simulation(federation.settings, "FedAMP", rounds)
    np.testing.assert_allclose(found["metrics"]["accuracy"][-1], expected.accuracy[-1], atol=1e-5)
    np.testing.assert_allclose(found["loss"][-1], expected.loss[-1], rtol=1e-4)


def test_an_answer_that_comes_too_late_is_lost(federation, slow_rounds):
    """A site that hangs does not count until it answers again; the others go on after the deadline."""
    stopped = []

    def watch():
        if max(federation.versions("north", "FedAvg"), default=0) >= 2 and not stopped:
            federation.signal("south", signal.SIGSTOP)
            stopped.append(time.monotonic())
        if stopped and time.monotonic() - stopped[0] > 40:
            federation.signal("south", signal.SIGCONT)

    [found], _ = federation.submit(["FedAvg"], 15, watch, deadline=20.0)
    assert stopped
    assert found["rejected"][2] >= 1
    assert found["rejected"][:2] == [0, 0]


def test_jobs_that_sites_refuse(federation):
    """A job that carries code, and one that names another class."""
    session = session_of(federation)
    flare._gathered(session, set(SITES), time.monotonic() + 60)

    def status(job):
        number = session.submit_job(str(job))
        until = time.monotonic() + 60
        while not (found := session.get_job_meta(number).get("status", "")).startswith("FINISHED"):
            if time.monotonic() > until:
                break
            time.sleep(0.5)
        return found

    marker = federation.folder / "was_here"
    code = flare.job(federation.folder / "code", methods=["FedAvg"], rounds=1, sites=SITES)
    (code / "app" / "custom").mkdir()
    (code / "app" / "custom" / "evil.py").write_text(f"open({str(marker)!r}, 'w')\n")
    client = code / "app" / "config" / "config_fed_client.json"
    client.write_text(client.read_text().replace(f"{flare.APP}.Client", "evil.Client"))
    other = shutil.copytree(flare.job(federation.folder / "job", methods=["FedAvg"], rounds=1, sites=SITES),
                            federation.folder / "other")  # fmt: skip
    client = other / "app" / "config" / "config_fed_client.json"
    client.write_text(client.read_text().replace(f"{flare.APP}.Client", "subprocess.Popen"))
    for job in (code, other):
        assert not re.fullmatch("FINISHED:COMPLETED", status(job))
    session.close()
    assert not marker.exists()
    logs = "".join((federation.folder / f"{site}.log").read_text() for site in ("localhost", *SITES))
    assert "BYOC not permitted" in logs or "byoc" in logs.lower()


def test_a_site_of_another_federation_is_refused(federation, tmp_path):
    """Its certificate is not one of ours."""
    stranger = Federation(tmp_path / "other", name="strangers")
    kit = stranger.kits / "north"
    for name in ("fed_client.json",):
        shutil.copy(federation.kits / "north" / "startup" / name, kit / "startup" / name)
    session = session_of(federation)
    flare._gathered(session, set(SITES), time.monotonic() + 60)
    flare.stop([federation.running.pop("north")])
    until = time.monotonic() + 90
    while "north" in flare._connected(session):
        assert time.monotonic() < until
        time.sleep(1)
    process = flare.start(kit, HERE / "hospital.py", tmp_path / "kept", log=tmp_path / "stranger.log")
    federation.running["stranger"] = process
    time.sleep(15)
    assert flare._connected(session) == {"east", "south"}
    session.close()


def test_settings_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="give a Python file with method and data"):
        Settings(tmp_path / "none.py")
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(ValueError, match=r"needs a function method\(\.\.\.\)"):
        Settings(tmp_path / "empty.py")


def test_a_federation_file_that_lacks_something(tmp_path):
    (tmp_path / "federation.yml").write_text("name: hospitals\n")
    with pytest.raises(ValueError, match="must have admin, name, port, server, sites"):
        flare.provision(tmp_path / "federation.yml", tmp_path)


def test_kits_are_not_made_twice(tmp_path):
    """A second root certificate would lock the first sites out. Failed with nvflare's own words."""
    first = Federation(tmp_path)
    with pytest.raises(ValueError, match="holds kits of 'hospitals' already"):
        flare.provision(tmp_path / "federation.yml", tmp_path / "kits")
    policy = json.loads((first.kits / "north" / "local" / "authorization.json").read_text())
    assert policy["permissions"]["project_admin"]["byoc"] == "none"
