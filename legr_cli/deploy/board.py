"""A machine to measure on: this one, or a board at the other end of an ssh.

The measuring core (`core.py`) is sent to a Python there through its standard input, and nothing
is written on that machine. When our end closes, for whatever reason, the core ends by itself.
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

_BEGIN = (
    "import sys; s = sys.stdin.buffer; exec(compile(s.read(int(s.readline())), 'core', 'exec'))"
)
_PATIENCE = 120.0  # seconds until a core says hello; a password may have to be typed
_SSH = ("ssh", "-T", "-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=15", "--")

Facts = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """Where to measure: the command that runs a Python there, and a name for messages."""

    command: tuple[str, ...]
    name: str
    ssh: bool = False


def here() -> Place:
    """This machine."""
    return Place((sys.executable, "-c", _BEGIN, "--serve"), "this machine")


def over_ssh(host: str, python: str = "python3") -> Place:
    """A machine that the user's own ssh reaches; `python` is for the shell there, as it stands."""
    if not re.fullmatch(r"[A-Za-z0-9_.\[\]:%@/][^\s]*", host):
        raise SettingError(f"--ssh {host}: expected USER@HOST or a name of your ssh config")
    return Place((*_SSH, host, f"{python} -c {shlex.quote(_BEGIN)} --serve"), host, ssh=True)


def place_for(host: str | None, python: str) -> Place:
    """The machine of `--ssh`, or this one."""
    return here() if host is None else over_ssh(host, python)


class Board:
    """A measuring core that is running somewhere, and the networks it holds."""

    def __init__(self, place: Place, threads: int = 1, core_number: int | None = None) -> None:
        self.place = place
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the board)
        try:
            with _deaf_to_ctrl_c():
                self._process = subprocess.Popen(
                    place.command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._errors,
                )
        except FileNotFoundError:
            raise BenchError(f"there is no {place.command[0]} on this machine") from None
        try:
            source = Path(core.__file__).read_bytes()
            with self._deadline():
                self._send(b"%d\n%b" % (len(source), source))
                self._await("hello")
            self.device = self._ask("device", do="begin", threads=threads, core=core_number)
            if not isinstance(self.device, dict) or "kernels" not in self.device:
                raise BenchError(f"{place.name} does not answer as the measuring core does")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Board":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def load(self, name: str, data: bytes, input_shape: Sequence[int] | None = None) -> Facts:
        """Bring a network there; what it is."""
        size = None if input_shape is None else list(input_shape)
        return self._ask("loaded", data, do="load", name=name, input=size)

    def drop(self, name: str) -> None:
        """Forget a network."""
        self._ask("dropped", do="drop", name=name)

    def answer(self, name: str) -> list[float]:
        """What a network gives there for the images that it is timed with."""
        found: list[float] = self._ask("answer", do="answer", name=name)
        return found

    def measure(
        self,
        names: Sequence[str],
        seconds: float,
        watch: Callable[[float], None] = lambda _: None,
    ) -> Facts:
        """Time networks in turns, with ratios to the first; after Ctrl-C what there is by then,
        noted as `stopped`.
        """
        request = {"do": "measure", "names": list(names), "seconds": seconds}
        self._send(json.dumps(request).encode() + b"\n")
        try:
            found = self._await("measured", watch)
        except KeyboardInterrupt:
            self._send(b'{"do": "stop"}\n')
            try:
                found = self._await("measured")
            except BenchError as error:
                raise KeyboardInterrupt(str(error)) from None
            found["stopped"] = True
        return found

    def close(self) -> None:
        """End the core; it has nothing to clean up."""
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
    def _deadline(self) -> Iterator[None]:
        """Give up on a machine that never answers."""
        late = threading.Timer(_PATIENCE, self._process.kill)
        late.start()
        try:
            yield
        except BenchError as error:
            if not late.is_alive():
                text = f"{self.place.name} did not answer within {_PATIENCE:.0f} s"
                raise BenchError(text) from error
            raise
        finally:
            late.cancel()

    def _ask(self, wanted: str, data: bytes = b"", **request: Any) -> Any:
        """Send a request and wait for its answer."""
        self._send(json.dumps({**request, "bytes": len(data)}).encode() + b"\n" + data)
        return self._await(wanted)

    def _send(self, data: bytes) -> None:
        """Write to the core."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            self._process.stdin.flush()
        except OSError:
            self._await("nothing")  # it is gone: say why

    def _await(self, wanted: str, watch: Callable[[float], None] = lambda _: None) -> Any:
        """The next answer of this kind; the shell's own chatter before it is passed over."""
        assert self._process.stdout is not None
        for line in iter(self._process.stdout.readline, b""):
            try:
                said = json.loads(line)
            except ValueError:
                continue
            if not isinstance(said, dict):
                continue
            if "trouble" in said:
                where = f"{self.place.name}: " if self.place.ssh else ""
                raise BenchError(f"{where}{said['trouble']}")
            if "progress" in said:
                watch(float(said["progress"]))
            if wanted in said:
                return said[wanted]
        raise BenchError(self._obituary())

    def _obituary(self) -> str:
        """Why the core is gone, and what to do."""
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        last = lines[-1].strip()[:200] if lines else f"exit code {code}"
        name = self.place.name
        if not self.place.ssh:
            killed = "; was it too large for the memory?" if code in (-9, 137) else ""
            return f"the measuring process ended ({last}){killed}"
        if code == 255:
            return f"{name} cannot be reached ({last}); does `ssh {name}` work?"
        if code in (126, 127):
            return f"{name} has no such Python ({last}): install python3, or name it by --python"
        if code == 137:
            return f"{name} killed the measuring process: was it too large for its memory?"
        return f"measuring on {name} ended: {last}"


@contextlib.contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """A process begun in here does not hear Ctrl-C: we do, and tell it what to do."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, heard)
