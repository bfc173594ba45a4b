"""Measure on this machine, or on a board reached over ssh.

The measuring core (`core.py`) is sent to a Python interpreter there through its standard input;
nothing is written to that machine's disk. When the connection closes, the core exits by itself.
"""

import contextlib
import json
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from legr_cli.deploy import core
from legr_cli.errors import BenchError, SettingError
from legr_cli.shapes import Shapes, shapes_json

_BOOTSTRAP = (  # reads the length of the core's source, then the source, and runs it
    "import sys; s = sys.stdin.buffer; exec(compile(s.read(int(s.readline())), 'core', 'exec'))"
)
_CONNECT_TIMEOUT = 120.0  # seconds to wait for the core; a password may have to be typed
_SSH = ("ssh", "-T", "-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=15", "--")

Facts = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """A machine to measure on: the command that starts the core there, and a name to show."""

    command: tuple[str, ...]
    name: str
    ssh: bool = False


def here() -> Place:
    """Measure on this machine."""
    return Place((sys.executable, "-c", _BOOTSTRAP, "--serve"), "this machine")


def over_ssh(host: str, python: str = "python3") -> Place:
    """Measure on a host that the user's ssh reaches; the shell there runs `python` as given."""
    if not re.fullmatch(r"[A-Za-z0-9_.\[\]:%@/][^\s]*", host):
        raise SettingError(f"--ssh {host}: expected USER@HOST or a host of your ssh config")
    return Place((*_SSH, host, f"{python} -c {shlex.quote(_BOOTSTRAP)} --serve"), host, ssh=True)


def place_for(host: str | None, python: str) -> Place:
    """Return the place that `--ssh` names, or this machine."""
    return here() if host is None else over_ssh(host, python)


class Board:
    """A running measuring core and the networks loaded into it.

        with Board(here()) as board:
            board.load("small", Path("small.onnx").read_bytes())
            result = board.measure(["small"], seconds=3)

    Raises BenchError if the core cannot be started or reports an error.
    """

    def __init__(self, place: Place, threads: int = 1, core_number: int | None = None) -> None:
        self.place = place
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the board)
        try:
            with _ignore_sigint():
                self._process = subprocess.Popen(
                    place.command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._errors,
                )
        except FileNotFoundError:
            raise BenchError(f"{place.command[0]} is not installed on this machine") from None
        try:
            source = Path(core.__file__).read_bytes()
            with self._timeout():
                self._send(b"%d\n%b" % (len(source), source))
                self._receive("hello")
            self.device = self._request("device", do="begin", threads=threads, core=core_number)
            if not isinstance(self.device, dict) or "kernels" not in self.device:
                raise BenchError(f"unexpected reply from {place.name}: not the measuring core")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Board":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def load(self, name: str, data: bytes, input_shape: Shapes | None = None) -> Facts:
        """Load an ONNX network into the core; return its size, input shape and metadata."""
        size = None if input_shape is None else shapes_json(input_shape)
        return self._request("loaded", data, do="load", name=name, input=size)

    def drop(self, name: str) -> None:
        """Unload a network."""
        self._request("dropped", do="drop", name=name)

    def first_output(self, name: str) -> list[float]:
        """Return a network's first output for the input it is timed with, flattened."""
        output: list[float] = self._request("output", do="run", name=name)
        return output

    def measure(
        self,
        names: Sequence[str],
        seconds: float,
        report: Callable[[float], None] = lambda _: None,
    ) -> Facts:
        """Time networks in turns for `seconds` each; ratios are relative to the first.

        `report` is called with the share that is done. After Ctrl-C, the result covers the rounds
        completed so far, and its `stopped` is true.
        """
        request = {"do": "measure", "names": list(names), "seconds": seconds}
        self._send(json.dumps(request).encode() + b"\n")
        try:
            result: Facts = self._receive("measured", report)
        except KeyboardInterrupt:
            self._send(b'{"do": "stop"}\n')
            try:
                result = self._receive("measured")
            except BenchError as error:
                raise KeyboardInterrupt(str(error)) from None
            result["stopped"] = True
        return result

    def close(self) -> None:
        """Stop the core; it has nothing to clean up."""
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()  # type: ignore[union-attr]
        self._errors.close()

    @contextlib.contextmanager
    def _timeout(self) -> Iterator[None]:
        """Stop waiting for a machine that never answers."""
        timer = threading.Timer(_CONNECT_TIMEOUT, self._process.kill)
        timer.start()
        try:
            yield
        except BenchError as error:
            if not timer.is_alive():
                text = f"{self.place.name} did not respond within {_CONNECT_TIMEOUT:.0f} s"
                raise BenchError(text) from error
            raise
        finally:
            timer.cancel()

    def _request(self, reply: str, data: bytes = b"", **request: Any) -> Any:
        """Send a request and wait for its reply."""
        self._send(json.dumps({**request, "bytes": len(data)}).encode() + b"\n" + data)
        return self._receive(reply)

    def _send(self, data: bytes) -> None:
        """Send bytes to the core."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            self._process.stdin.flush()
        except OSError:
            self._receive("nothing")  # the core has exited: raises with the reason

    def _receive(self, reply: str, report: Callable[[float], None] = lambda _: None) -> Any:
        """Wait for this reply; other output, such as a shell's greeting, is skipped."""
        assert self._process.stdout is not None
        for line in iter(self._process.stdout.readline, b""):
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if not isinstance(message, dict):
                continue
            if "error" in message:
                where = f"{self.place.name}: " if self.place.ssh else ""
                raise BenchError(f"{where}{message['error']}")
            if "progress" in message:
                report(float(message["progress"]))
            if reply in message:
                return message[reply]
        raise BenchError(self._exit_reason())

    def _exit_reason(self) -> str:
        """Say why the core has exited, and what to do about it."""
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        last = lines[-1].strip()[:200] if lines else f"exit code {code}"
        name = self.place.name
        if not self.place.ssh:
            killed = "; did it run out of memory?" if code in (-9, 137) else ""
            return f"the measuring process exited unexpectedly ({last}){killed}"
        if code == 255:
            return f"{name} cannot be reached ({last}); does `ssh {name}` work?"
        if code in (126, 127):
            return f"{name} has no such Python ({last}); install python3, or pass --python"
        if code == 137:
            return f"{name} killed the measuring process; did it run out of memory?"
        return f"the measuring process on {name} exited unexpectedly: {last}"


@contextlib.contextmanager
def _ignore_sigint() -> Iterator[None]:
    """Start processes that ignore Ctrl-C: legr handles it and tells the core to stop."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
