"""Studies on the workers of a Dask scheduler: a real one, with two workers."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from replay.errors import UserError
from replay.experiments.base.crews import clusters
from replay.studies.sweeps import sweep

distributed = pytest.importorskip("distributed", reason="pip install 'moereplay[sweep]'")
pytestmark = pytest.mark.filterwarnings("default")  # what Dask does to sockets is not ours


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A scheduler with two workers, each a process; a batch is given up when its worker dies."""
    import dask

    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as made,
    ):
        yield made


@pytest.mark.extended
def test_two_workers_leave_what_one_process_leaves_though_one_is_killed(
    odd_study: Callable[..., Path], tmp_path: Path, cluster: Any
) -> None:
    """The folder is that of the sweep alone: workers know nothing of it, as on other machines."""
    study = odd_study("slow", seeds="[0, 1, 2, 3, 4]")
    killed: list[int] = []

    def kill(done: int, _: int) -> None:
        if done >= 4 and not killed:
            with distributed.Client(cluster.scheduler_address, set_as_default=False) as client:
                busy = [name for name, keys in client.processing().items() if keys]
                if not busy:  # between two batches
                    return
                killed.append(client.run(os.getpid, workers=busy[:1])[busy[0]])
            os.kill(killed[0], signal.SIGKILL)

    result = sweep(study, tmp_path / "out", scheduler=cluster.scheduler_address, progress=kill, allow_code=True)
    assert (result.num_computed, result.num_failed) == (20, 0) and killed
    alone = sweep(study, tmp_path / "alone", allow_code=True)
    assert result.to_json() == alone.to_json()
    points = [
        {path.name: path.read_bytes() for path in (tmp_path / name / "points").iterdir()} for name in ("out", "alone")
    ]
    assert points[0] == points[1] and len(points[0]) == 20


@pytest.mark.extended  # on processes of this machine: test_workers.py
def test_a_point_that_kills_workers_fails_alone(odd_study: Callable[..., Path], tmp_path: Path, cluster: Any) -> None:
    study = odd_study("deadly", deaths=2, seeds="[0]", ranks="[2]")
    result = sweep(study, tmp_path / "out", scheduler=cluster.scheduler_address, allow_code=True)
    assert (result.num_computed, result.num_failed) == (1, 1)
    assert "failed [1]" in result.text() and "was killed" in result.text()


def test_a_worker_with_other_files_ends_the_sweep(odd_study: Callable[..., Path], tmp_path: Path, cluster: Any) -> None:
    study = odd_study("slow", seeds="[0]", ranks="[2]")
    from replay.studies.sweeps.plan import plan_sweep

    plan = plan_sweep(study, allow_code=True)
    (tmp_path / "odd.py").unlink()
    with pytest.raises(UserError, match=r"the worker on .* cannot replay a point: .*odd\.py"):
        sweep(plan, tmp_path / "out", scheduler=cluster.scheduler_address)
    assert not (tmp_path / "out" / "claims").exists()


@pytest.mark.extended
def test_a_scheduler_without_workers_is_waited_for(
    small: Path, tmp_path: Path, is_whole: Callable[[Path], bool]
) -> None:
    with distributed.LocalCluster(n_workers=0, dashboard_address=":0", silence_logs=50, processes=False) as made:
        said: list[str] = []

        def report(line: str) -> None:
            said.append(line)
            made.scale(1)

        sweep(small, tmp_path, scheduler=made.scheduler_address, report=report)
    assert len(said) == 1 and "has no workers yet" in said[0]
    assert is_whole(tmp_path)


@pytest.mark.extended
def test_a_scheduler_that_goes_is_a_mistake_and_work_goes_on_later(
    odd_study: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "CONNECT_S", 1)
    study = odd_study("slow")
    made = distributed.LocalCluster(n_workers=1, dashboard_address=":0", silence_logs=50, processes=False)
    closing = threading.Thread(target=made.close)

    def close(done: int, _: int) -> None:
        if done == 2:
            closing.start()
            closing.join()

    with pytest.raises(UserError, match="the scheduler is gone"):
        sweep(
            study,
            tmp_path / "out",
            scheduler=made.scheduler_address,
            progress=close,
            allow_code=True,
        )
    assert sweep(study, tmp_path / "out", allow_code=True).num_reused >= 2


@pytest.mark.extended
def test_a_cluster_of_this_machine(small: Path, tmp_path: Path, is_whole: Callable[[Path], bool]) -> None:
    assert sweep(small, tmp_path, cluster="local", jobs=1).num_computed == 18
    assert is_whole(tmp_path)
    assert sweep(small, tmp_path, scheduler="tcp://no.such.host:1").num_reused == 18, "not needed"


def test_nobody_at_the_address_is_a_mistake(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "CONNECT_S", 0.5)
    began = time.monotonic()
    for address in ("tcp://127.0.0.1:9", "nonsense://x", "tcp://127.0.0.1:notaport"):
        with pytest.raises(UserError, match="cannot reach the scheduler") as caught:
            sweep(small, tmp_path, scheduler=address)
        assert "\n" not in str(caught.value)
    assert time.monotonic() - began < 20
    assert not (tmp_path / "claims").exists()


@pytest.mark.parametrize(
    ("missing", "settings", "says"),
    [
        ("distributed", {"scheduler": "tcp://a:1"}, "needs Dask: pip install"),
        ("distributed", {"cluster": "local"}, "needs Dask: pip install"),
        ("dask_jobqueue", {"cluster": "slurm", "jobs": 2}, "needs dask-jobqueue: pip install"),
    ],
)
def test_without_dask_it_says_how_to_install_it(
    missing: str,
    settings: dict[str, Any],
    says: str,
    small: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(UserError, match=says):
        sweep(small, tmp_path, **settings)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"cluster": "slurmm"}, "did you mean 'slurm'"),
        ({"cluster": "slurm"}, "Give --jobs with --cluster slurm"),
        ({"scheduler": "tcp://a:1", "jobs": 2}, "scheduler and jobs exclude each other"),
        ({"scheduler": "tcp://a:1", "cluster": "local"}, "scheduler and cluster exclude"),
    ],
)
def test_who_replays_is_said_once(settings: dict[str, Any], says: str, small: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=says):
        sweep(small, tmp_path, **settings)


@pytest.mark.extended
def test_a_worker_of_slurm_is_a_job_with_one_core() -> None:
    if find_spec("dask_jobqueue") is None:  # imported here, it would change what Ctrl-C does
        pytest.skip("pip install 'moereplay[sweep]'")
    import dask

    config = {"jobqueue.slurm.queue": "short", "jobqueue.slurm.memory": "3GB"}
    handler = signal.getsignal(signal.SIGINT)
    with dask.config.set(config), clusters.slurm_cluster() as made:
        script = made.job_script()
    assert signal.getsignal(signal.SIGINT) is handler, "importing it once changed what Ctrl-C does"
    for line in ("-p short", "-n 1", "--cpus-per-task=1", "--mem=3G"):
        assert f"#SBATCH {line}\n" in script
    assert f"{sys.executable} -m distributed.cli.dask_worker" in script
    assert "--nthreads 1" in script
