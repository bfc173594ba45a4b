"""Where candidates are evaluated: in this process, in worker processes, or on a Dask cluster.

All three are a `concurrent.futures.Executor`, created again when its workers are lost.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor
from multiprocessing.connection import wait
from typing import Any

from legr_cli.errors import SearchError, SettingError, first_line
from legr_cli.search.evaluator import Cuts, Job, Outcome, evaluate_candidate

ANSWER = 10  # seconds that a cluster has to answer

Evaluate = Callable[[Cuts], list[Outcome]]
Made = tuple[Executor, Callable[..., list[Outcome]], tuple[Any, ...]]  # call with these and cuts


class WorkerPool:
    """Workers for one search; `generation` counts how often they were replaced."""

    def __init__(self, make: Callable[[], Made]) -> None:
        self.generation = 0
        self._make = make
        self._made: Made | None = None

    def submit(self, cuts: Cuts) -> "Future[list[Outcome]]":
        """Have a candidate evaluated; workers start with the first one."""
        self._made = self._made or self._make()
        executor, call, first = self._made
        return executor.submit(call, *first, cuts)

    def replace(self, generation: int) -> None:
        """Replace the workers of this generation, unless that was done already."""
        if generation == self.generation:
            self.shutdown()
            self.generation += 1

    def shutdown(self) -> None:
        """Stop the workers, whatever they are doing."""
        if self._made is None:
            return
        executor, self._made = self._made[0], None
        local = isinstance(executor, ProcessPoolExecutor)
        for process in list((getattr(executor, "_processes", None) or {}).values()):
            process.kill()
        executor.shutdown(wait=local)  # do not wait for a cluster's workers


def is_loss(error: BaseException) -> bool:
    """Whether a worker was lost, or what was sent to it: another worker may succeed."""
    names = {"FutureCancelledError", "FutureLostError", "CommClosedError"}
    ours = isinstance(error, BrokenExecutor | CancelledError)
    return ours or any(kind.__name__ in names for kind in type(error).__mro__)


def is_given_up(error: BaseException) -> bool:
    """Whether Dask gave up on a candidate after several workers died of it."""
    return type(error).__name__ == "KilledWorker"


class InProcess(Executor):
    """An executor that runs every call at once."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Run the call; Ctrl-C is not caught."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except (Exception, SystemExit) as error:
            future.set_exception(error)
        return future


def in_process(make: Callable[[], Evaluate]) -> WorkerPool:
    """One candidate after the other, in this process."""
    return WorkerPool(lambda: (InProcess(), make(), ()))


def processes(job: Job, count: int, threads: int) -> WorkerPool:
    """Worker processes on this machine, each with its share of the threads."""
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if "forkserver" in methods:  # torch is imported once, and its pages are shared
        context.set_forkserver_preload(["legr_cli.search.evaluator"])
        _hush_tracker()

    def make() -> Made:
        numbers = context.Value("i", 0)
        pool = ProcessPoolExecutor(
            count, mp_context=context, initializer=_enter, initargs=(job, threads, numbers)
        )
        return pool, _evaluate_here, ()

    return WorkerPool(make)


def _hush_tracker() -> None:
    """Silence warnings about what killed workers leave behind; Python cleans it up."""
    from multiprocessing import resource_tracker

    before = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = "ignore"
    resource_tracker.ensure_running()
    del os.environ["PYTHONWARNINGS"]
    if before is not None:
        os.environ["PYTHONWARNINGS"] = before


_here: tuple[Job, int] | None = None  # in a worker process: its job and its number


def _enter(job: Job, threads: int, numbers: Any) -> None:
    """Start a worker process: take a number, limit threads, exit when the parent does."""
    global _here
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    torch.set_num_threads(threads)
    with numbers.get_lock():
        _here = job, numbers.value
        numbers.value += 1
    parent = multiprocessing.parent_process()
    if parent is not None:
        watch = threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True)
        watch.start()


def _end_with(sentinel: int) -> None:
    """Exit when the parent is gone: if it was killed, it could not stop its workers."""
    wait([sentinel])
    os._exit(1)


def _evaluate_here(cuts: Cuts) -> list[Outcome]:
    """Evaluate a candidate in a worker process."""
    assert _here is not None
    job, number = _here
    return evaluate_candidate(job, cuts, number)


@contextlib.contextmanager
def connected(address: str) -> Iterator[Any]:
    """A client of the Dask cluster at this address, once it has workers."""
    try:
        from distributed import Client
    except ImportError:
        raise SettingError("--cluster needs Dask: pip install 'legr-cli[cluster]'") from None
    try:
        client = Client(address, timeout=ANSWER, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise SettingError(
            f"--cluster {address} does not answer ({first_line(error)}): start one with "
            "`dask scheduler`, and `dask worker ADDRESS` on each machine"
        ) from error
    with client:
        _await_workers(client, address)
        yield client


def on_cluster(job: Job, client: Any) -> WorkerPool:
    """The workers of a Dask cluster; network and images are sent to each of them once."""
    carried = job.carried()

    def make() -> Made:
        _await_workers(client, client.scheduler.address)
        sent = client.scatter(carried, broadcast=True, hash=False)
        return client.get_executor(pure=False), evaluate_candidate, (sent,)

    return WorkerPool(make)


def _await_workers(client: Any, address: str) -> None:
    """Check that a cluster has workers."""
    try:
        client.wait_for_workers(1, timeout=ANSWER)
    except TimeoutError as error:
        raise SearchError(
            f"the scheduler at {address} has no workers: start some with `dask worker {address}`; "
            "continue an interrupted search with --resume"
        ) from error
