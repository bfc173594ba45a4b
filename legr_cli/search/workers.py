"""Worker pools that evaluate candidates: this process, worker processes, or a Dask cluster.

Each of them is a `concurrent.futures.Executor`, which is created again if workers are lost.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor
from multiprocessing.connection import wait
from typing import Any

from legr_cli.errors import SearchError, SettingError, first_line
from legr_cli.search.evaluator import Job, Outcome, Plans, evaluate_candidate

TIMEOUT = 10  # seconds to wait for a cluster to respond

Evaluate = Callable[[Plans, "Sequence[float] | None"], list[Outcome]]
# An executor, the function to call in it, and the arguments that come before the plans.
Workers = tuple[Executor, Callable[..., list[Outcome]], tuple[Any, ...]]


class WorkerPool:
    """The workers of a search; `generation` counts how often they were replaced."""

    def __init__(self, start: Callable[[], Workers]) -> None:
        self.generation = 0
        self._start = start
        self._workers: Workers | None = None

    def submit(self, plans: Plans, best: Sequence[float] | None = None) -> "Future[list[Outcome]]":
        """Submit a candidate for evaluation; the first one starts the workers.

        `best` has the divergences of the best candidate so far, to reject much worse ones early.
        """
        self._workers = self._workers or self._start()
        executor, function, arguments = self._workers
        return executor.submit(function, *arguments, plans, best)

    def replace(self, generation: int) -> None:
        """Replace the workers of this generation, unless they have been replaced already."""
        if generation == self.generation:
            self.shutdown()
            self.generation += 1

    def shutdown(self) -> None:
        """Stop the workers immediately, even if they are busy."""
        if self._workers is None:
            return
        executor, self._workers = self._workers[0], None
        is_local = isinstance(executor, ProcessPoolExecutor)
        for process in list((getattr(executor, "_processes", None) or {}).values()):
            process.kill()
        executor.shutdown(wait=is_local)  # do not wait for a cluster's workers


def is_lost_worker(error: BaseException) -> bool:
    """Whether a worker or the data sent to it was lost, so that a retry may succeed."""
    # Dask may not be installed, so its errors are recognized by name.
    dask_errors = {"FutureCancelledError", "FutureLostError", "CommClosedError"}
    is_local = isinstance(error, BrokenExecutor | CancelledError)
    return is_local or any(base.__name__ in dask_errors for base in type(error).__mro__)


def is_killed_worker(error: BaseException) -> bool:
    """Whether Dask gave up on a candidate because it killed several workers."""
    return type(error).__name__ == "KilledWorker"


class InProcess(Executor):
    """An executor that runs every call synchronously in this process."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Run the call now; KeyboardInterrupt is not caught."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except (Exception, SystemExit) as error:
            future.set_exception(error)
        return future


def in_process(evaluator: Callable[[], Evaluate]) -> WorkerPool:
    """A pool that evaluates one candidate at a time in this process."""
    return WorkerPool(lambda: (InProcess(), evaluator(), ()))


def processes(job: Job, count: int, threads: int) -> WorkerPool:
    """A pool of worker processes on this machine, with `threads` torch threads each."""
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if "forkserver" in methods:  # the server imports torch once, and workers share its memory
        context.set_forkserver_preload(["legr_cli.search.evaluator"])
        _silence_resource_tracker()

    def start() -> Workers:
        counter = context.Value("i", 0)
        executor = ProcessPoolExecutor(
            count, mp_context=context, initializer=_init_worker, initargs=(job, threads, counter)
        )
        return executor, _evaluate_in_worker, ()

    return WorkerPool(start)


def _silence_resource_tracker() -> None:
    """Silence warnings about resources that killed workers leak; Python cleans them up."""
    from multiprocessing import resource_tracker

    before = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = "ignore"
    resource_tracker.ensure_running()
    del os.environ["PYTHONWARNINGS"]
    if before is not None:
        os.environ["PYTHONWARNINGS"] = before


_worker: tuple[Job, int] | None = None  # in a worker process: its job and its number


def _init_worker(job: Job, threads: int, counter: Any) -> None:
    """Initialize a worker process: number it, limit its threads, make it exit with the parent."""
    global _worker
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    torch.set_num_threads(threads)
    with counter.get_lock():
        _worker = job, counter.value
        counter.value += 1
    parent = multiprocessing.parent_process()
    if parent is not None:
        monitor = threading.Thread(target=_exit_with, args=(parent.sentinel,), daemon=True)
        monitor.start()


def _exit_with(sentinel: int) -> None:
    """Exit when the parent does: a parent that was killed could not stop its workers."""
    wait([sentinel])
    os._exit(1)


def _evaluate_in_worker(plans: Plans, best: Sequence[float] | None) -> list[Outcome]:
    """Evaluate a candidate in a worker process."""
    assert _worker is not None
    job, number = _worker
    return evaluate_candidate(job, plans, best, number)


@contextlib.contextmanager
def dask_client(address: str) -> Iterator[Any]:
    """Connect to the Dask cluster at this address, and wait until it has workers."""
    try:
        from distributed import Client
    except ImportError:
        raise SettingError("--cluster needs Dask: pip install 'legr-cli[cluster]'") from None
    try:
        client = Client(address, timeout=TIMEOUT, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise SettingError(
            f"--cluster {address} does not respond ({first_line(error)}): start a scheduler with "
            "`dask scheduler`, and run `dask worker ADDRESS` on each machine"
        ) from error
    with client:
        _await_workers(client, address)
        yield client


def on_cluster(job: Job, client: Any) -> WorkerPool:
    """The workers of a Dask cluster; the network and the images are sent to each of them once."""
    self_contained = job.self_contained()

    def start() -> Workers:
        _await_workers(client, client.scheduler.address)
        scattered = client.scatter(self_contained, broadcast=True, hash=False)
        return client.get_executor(pure=False), evaluate_candidate, (scattered,)

    return WorkerPool(start)


def _await_workers(client: Any, address: str) -> None:
    """Wait until a cluster has workers; raise SearchError if it has none in time."""
    try:
        client.wait_for_workers(1, timeout=TIMEOUT)
    except TimeoutError as error:
        raise SearchError(
            f"the scheduler at {address} has no workers: start some with `dask worker {address}`, "
            "and pass --resume to continue an interrupted search"
        ) from error
