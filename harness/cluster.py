"""Workers of a Dask cluster: one that runs already, or one whose workers are jobs of a batch system."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from harness.errors import InputError, RunFailure
from harness.units import PositiveSizeBytes

if TYPE_CHECKING:
    from joblib import Parallel

#: For a scheduler to answer [s].
_CONNECT_S = 5

_MISSING = "Dask is not installed; the extra `hpc` has it: pip install 'netkv-cosim[hpc]'"


class ClusterSettings(BaseModel):
    """Jobs of a batch system, each of which brings a worker process for each of its cores.

    Parameters
    ----------
    use : the batch system.
    jobs : how many to submit.
    cores, memory : of a job; a packet-level cell takes one core.
    walltime : of a job, in the batch system's notation.
    queue, account : to submit to, and to charge.
    directives : more lines for the head of the job script, such as ``--constraint=icelake``.
    prologue : shell commands before the workers start, such as ``module load gcc``.
    interface : network interface of the nodes that scheduler and workers talk over, such as ``ib0``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    use: Literal["slurm", "pbs"]
    jobs: Annotated[int, Field(ge=1)]
    cores: Annotated[int, Field(ge=1)]
    memory: PositiveSizeBytes
    walltime: str = "24:00:00"
    queue: str | None = None
    account: str | None = None
    directives: list[str] = Field(default_factory=list)
    prologue: list[str] = Field(default_factory=list)
    interface: str | None = None


@dataclass(frozen=True)
class DaskWorkers:
    """The workers of a Dask scheduler."""

    client: Any
    job_script: str = ""  #: of the jobs that the workers are, if they are

    @property
    def slots(self) -> int:
        """The workers' threads."""
        return sum(self.client.ncores().values())

    def wait(self) -> None:
        """Until there is a worker."""
        self.client.wait_for_workers(1)

    def parallel(self, n: int) -> Parallel:
        """By joblib's dask.

        All cells are handed to the scheduler, as more workers may still come; but not a few, which Dask would let wait
        behind one another while workers have nothing to do.
        """
        from joblib import Parallel, parallel_config
        from joblib._dask import DaskDistributedBackend

        class Remote(DaskDistributedBackend):  # type: ignore[misc]
            def effective_n_jobs(self, n_jobs: int) -> int:
                # For a single one joblib runs everything in this process, which may be on a login node.
                return max(2, int(super().effective_n_jobs(n_jobs)))

        slots = max(1, self.slots)
        with parallel_config(backend=Remote(client=self.client), n_jobs=-1):
            return Parallel(
                return_as="generator_unordered", batch_size=1, pre_dispatch="all" if n > 2 * slots else slots
            )

    @property
    def loss_errors(self) -> tuple[type[BaseException], ...]:
        """Of tasks that Dask gave up."""
        from distributed import CancelledError, KilledWorker

        return (CancelledError, KilledWorker)

    def losses(self) -> Mapping[str, str]:
        """Tasks that took down too many workers, or that no worker could read.

        Raises
        ------
        RunFailure : the scheduler is gone.
        """
        if self.client.status != "running":
            raise RunFailure("the Dask scheduler is gone; what is complete is kept, --resume goes on from there")
        futures = list(self.client.futures.items())
        return {str(key): str(future.exception) for key, future in futures if future.status in ("error", "lost")}


@contextmanager
def dask_workers(address: str) -> Iterator[DaskWorkers]:
    """Connect to a Dask scheduler.

    Raises
    ------
    InputError : it does not answer, or Dask is not installed.
    """
    source = f"--dask {address}"
    try:
        _hush()
        from distributed import Client
    except ImportError as error:
        raise InputError(_MISSING, source=source) from error
    try:
        client = Client(address, timeout=_CONNECT_S, set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise InputError(f"no Dask scheduler answers there within {_CONNECT_S} s", source=source) from error
    with client:
        yield DaskWorkers(client)


@contextmanager
def cluster_workers(settings: ClusterSettings, name: str) -> Iterator[DaskWorkers]:
    """Submit the jobs, and take them back at the end.

    Raises
    ------
    InputError : Dask is not installed.
    """
    with _cluster(settings, name) as cluster:
        from distributed import Client

        cluster.adapt(minimum_jobs=settings.jobs, maximum_jobs=settings.jobs)  # replaces those whose walltime is over
        with Client(cluster, set_as_default=False) as client:  # type: ignore[no-untyped-call]
            yield DaskWorkers(client, cluster.job_script())


def job_script(settings: ClusterSettings, name: str) -> str:
    """The job script that would be submitted, once for each job.

    Raises
    ------
    InputError : Dask is not installed.
    """
    with _cluster(settings, name) as cluster:
        return str(cluster.job_script())


def _cluster(settings: ClusterSettings, name: str) -> Any:
    try:
        _hush()
        from dask_jobqueue.pbs import PBSCluster
        from dask_jobqueue.slurm import SLURMCluster
    except ImportError as error:
        raise InputError(_MISSING, key="cluster") from error
    kinds: dict[str, Any] = {"slurm": SLURMCluster, "pbs": PBSCluster}
    return kinds[settings.use](
        job_name=f"netkv-{name}",
        queue=settings.queue,
        account=settings.account,
        cores=settings.cores,
        processes=settings.cores,  # one thread each: fluid cells hold Python's lock
        memory=f"{settings.memory}B",
        walltime=settings.walltime,
        job_extra_directives=settings.directives,
        job_script_prologue=settings.prologue,
        interface=settings.interface,
        scheduler_options={"dashboard_address": ":0"},
        python=sys.executable,
    )


def _hush() -> None:
    """Keep Dask from telling in its words, also later on, what is told in ours: a scheduler that does not answer."""
    import dask

    dask.config.set(logging={"distributed": "critical", "distributed.client": "critical"})  # read by its first import
