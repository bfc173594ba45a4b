"""Where candidates are tried: in this process, in processes beside it, or on a Dask cluster.

All three are a `concurrent.futures.Executor`, made anew when its workers are lost.
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
from legr_cli.search.fitness import Cuts, Job, Outcome, evaluate_candidate

ANSWER = 10  # seconds that a cluster has to answer

Made = tuple[Executor, Callable[..., list[Outcome]], tuple[Any, ...]]  # call it with these and cuts


class WorkerPool:
    """Workers for one job; `shift` counts how often they were replaced."""

    def __init__(self, make: Callable[[], Made]) -> None:
        self.shift = 0
        self._make = make
        self._made: Made | None = None

    def submit(self, cuts: Cuts) -> "Future[list[Outcome]]":
        """Have a candidate tried; workers are engaged when the first one comes."""
        self._made = self._made or self._make()
        executor, call, first = self._made
        return executor.submit(call, *first, cuts)

    def replace(self, shift: int) -> None:
        """Engage others in the place of those of this shift, unless that was done."""
        if shift == self.shift:
            self.shutdown()
            self.shift += 1

    def shutdown(self) -> None:
        """Let the workers go, whatever they are doing."""
        if self._made is None:
            return
        executor, self._made = self._made[0], None
        local = isinstance(executor, ProcessPoolExecutor)
        for process in list((getattr(executor, "_processes", None) or {}).values()):
            process.kill()
        executor.shutdown(wait=local)  # a cluster's workers are told and not waited for


def is_loss(error: BaseException) -> bool:
    """Whether a worker went away, or what was sent to it: another may do better."""
    names = {"FutureCancelledError", "FutureLostError", "CommClosedError"}
    ours = isinstance(error, BrokenExecutor | CancelledError)
    return ours or any(kind.__name__ in names for kind in type(error).__mro__)


def is_given_up(error: BaseException) -> bool:
    """Whether Dask gave a candidate up, after as many workers died of it as it allows (3)."""
    return type(error).__name__ == "KilledWorker"


class InProcess(Executor):
    """An executor that does what it is asked at once."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Call and keep what came of it; Ctrl-C goes through."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except (Exception, SystemExit) as error:
            future.set_exception(error)
        return future


def in_process(job: Job) -> WorkerPool:
    """One candidate after the other, here."""
    return WorkerPool(lambda: (InProcess(), evaluate_candidate, (job,)))


def processes(job: Job, count: int, threads: int) -> WorkerPool:
    """Processes on this machine, each with its share of the threads; images are shared."""
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if "forkserver" in methods:  # torch is imported once, and its pages are shared
        context.set_forkserver_preload(["legr_cli.search.fitness"])
        _hush_tracker()

    def make() -> Made:
        numbers = context.Value("i", 0)
        pool = ProcessPoolExecutor(
            count, mp_context=context, initializer=_enter, initargs=(job, threads, numbers)
        )
        return pool, _try_out_here, ()

    return WorkerPool(make)


def _hush_tracker() -> None:
    """What killed workers leave behind is cleaned up by Python; users need not read of it."""
    from multiprocessing import resource_tracker

    before = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = "ignore"
    resource_tracker.ensure_running()
    del os.environ["PYTHONWARNINGS"]
    if before is not None:
        os.environ["PYTHONWARNINGS"] = before


_here: tuple[Job, int] | None = None  # of a worker process: its job and its number


def _enter(job: Job, threads: int, numbers: Any) -> None:
    """A worker process begins: take a number, use few threads, end when the parent does."""
    global _here
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    torch.set_num_threads(threads)
    with numbers.get_lock():
        _here = job, numbers.value
        numbers.value += 1
    parent = multiprocessing.parent_process()
    if parent is not None:
        watch = threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True)
        watch.start()


def _end_with(sentinel: int) -> None:
    """A parent that was killed cannot dismiss its workers: they go by themselves."""
    wait([sentinel])
    os._exit(1)


def _try_out_here(cuts: Cuts) -> list[Outcome]:
    """Try a candidate in a worker process."""
    assert _here is not None
    job, number = _here
    return evaluate_candidate(job, cuts, number)


@contextlib.contextmanager
def connected(address: str) -> Iterator[Any]:
    """A client of the Dask cluster at this address, which has workers."""
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
    """The workers of a Dask cluster; network and images travel to each of them once."""
    carried = job.carried()

    def make() -> Made:
        _await_workers(client, client.scheduler.address)
        sent = client.scatter(carried, broadcast=True, hash=False)
        return client.get_executor(pure=False), evaluate_candidate, (sent,)

    return WorkerPool(make)


def _await_workers(client: Any, address: str) -> None:
    """A scheduler alone cannot do anything."""
    try:
        client.wait_for_workers(1, timeout=ANSWER)
    except TimeoutError as error:
        raise SearchError(
            f"the scheduler at {address} has no workers: start some with `dask worker {address}`; "
            "a search that was under way goes on with --resume"
        ) from error
