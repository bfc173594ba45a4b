"""Time ONNX networks on one core. A single file for Python 3.8+ with numpy and onnxruntime.

On a board:  python3 legr_bench.py dense.onnx small.onnx > bench.json

legr runs this file in a separate process, locally or over ssh, and talks to it through its standard
streams (`--serve`): each request is a line of JSON, followed by the bytes of a network if there is
one; replies are lines of JSON. Networks stay in memory, and nothing is written to disk.

Networks take turns of about 50 ms. The first run of a turn is not counted, as the caches still hold
the previous network. A ratio compares turns of the same round, and the median over all rounds is
reported, so a temporary slowdown of the machine affects both networks alike.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import queue
import sys
import threading
import time
import warnings
from typing import Any, Callable, Dict, Iterator, Sequence

FORMAT, VERSION = "legr-bench", 1
TURN = 0.05  # seconds that a network runs before the next one takes over
WARM_UP = 0.25  # seconds; at least three runs
ROUNDS = 5  # minimum number of rounds, however long they take
CLOCK_TOLERANCE = 0.05  # share by which the clock frequency may vary without a note

Facts = Dict[str, Any]  # evaluated at run time, so not `dict[...]`: this must run on Python 3.8


class CoreError(Exception):
    """An error that the user can fix, in one line."""


# Machine


def read(path: str) -> str:
    """Return the text of a file in /proc or /sys; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read().decode("utf-8", "replace").strip("\0\n ")
    except OSError:
        return ""


FEATURES = (
    "sse4_2 avx avx2 fma avx512f avx512_vnni avx_vnni amx_tile asimd asimddp asimdhp i8mm sve"
)
CORES = {  # names of ARM and NVIDIA cores, by implementer and part
    "0x41 0xd03": "Cortex-A53",
    "0x41 0xd04": "Cortex-A35",
    "0x41 0xd05": "Cortex-A55",
    "0x41 0xd07": "Cortex-A57",
    "0x41 0xd08": "Cortex-A72",
    "0x41 0xd09": "Cortex-A73",
    "0x41 0xd0a": "Cortex-A75",
    "0x41 0xd0b": "Cortex-A76",
    "0x41 0xd0c": "Neoverse-N1",
    "0x41 0xd0d": "Cortex-A77",
    "0x41 0xd40": "Neoverse-V1",
    "0x41 0xd41": "Cortex-A78",
    "0x41 0xd42": "Cortex-A78AE",
    "0x41 0xd46": "Cortex-A510",
    "0x41 0xd47": "Cortex-A710",
    "0x41 0xd49": "Neoverse-N2",
    "0x4e 0x003": "Denver 2",
    "0x4e 0x004": "Carmel",
}


def cpu_of(core: int | None) -> tuple[str, list[str]]:
    """Return the name and instruction set features of a core, from /proc/cpuinfo."""
    blocks = []
    for block in read("/proc/cpuinfo").split("\n\n"):
        pairs = (line.partition(":") for line in block.splitlines())
        blocks.append({key.strip(): value.strip() for key, _, value in pairs})
    matching = [b for b in blocks if b.get("processor") == str(core)] or blocks
    facts = matching[0]
    part = CORES.get(f"{facts.get('CPU implementer')} {facts.get('CPU part')}")
    name = facts.get("model name") or part or platform.processor() or platform.machine()
    have = set((facts.get("flags") or facts.get("Features") or "").split())
    return name, [feature for feature in FEATURES.split() if feature in have]


def kernels(features: Sequence[str]) -> str:
    """Return the kind of kernels that ONNX Runtime uses, as `legr prune --align` names it."""
    if platform.machine().lower() in ("aarch64", "arm64", "armv7l", "armv8l"):
        return "arm"
    return "avx512" if "avx512f" in features else "avx2" if "avx2" in features else "other"


def clock_mhz(core: int | None, which: str = "scaling_cur_freq") -> float | None:
    """Return a core's clock frequency in MHz; None if the kernel does not report it."""
    text = read(f"/sys/devices/system/cpu/cpu{core or 0}/cpufreq/{which}")
    return int(text) / 1000 if text.isdigit() else None


def temperature_c() -> float | None:
    """Return the highest temperature in °C; None if the kernel reports none."""
    root = "/sys/class/thermal"
    zones = os.listdir(root) if os.path.isdir(root) else []
    texts = [read(f"{root}/{zone}/temp") for zone in zones if zone.startswith("thermal_zone")]
    return max((int(text) / 1000 for text in texts if text.lstrip("-").isdigit()), default=None)


def pin(threads: int, core: int | None = None) -> list[int]:
    """Pin this process to one core per thread: the fastest; of equally fast ones, the last.

    The first core handles most interrupts. Returns the cores; none if the system has no pinning.
    """
    if not hasattr(os, "sched_setaffinity"):
        return []
    allowed = sorted(os.sched_getaffinity(0))
    if threads > len(allowed):
        raise CoreError(f"--threads {threads}: only {len(allowed)} cores are available")
    by_speed = sorted(allowed, key=lambda c: (clock_mhz(c, "cpuinfo_max_freq") or 0, c))
    chosen = by_speed[-threads:] if core is None else [core]
    if core is not None and (core not in allowed or threads > 1):
        raise CoreError(f"--core {core}: expected one of {allowed}, with --threads 1")
    try:
        os.sched_setaffinity(0, chosen)
    except OSError:
        return []
    return chosen


def machine(pinned: Sequence[int]) -> Facts:
    """Describe the machine: CPU, clock governor, system and software versions."""
    import onnxruntime

    core = pinned[0] if pinned else None
    name, features = cpu_of(core)
    governor = f"/sys/devices/system/cpu/cpu{core or 0}/cpufreq/scaling_governor"
    return {
        "board": read("/proc/device-tree/model") or None,
        "cpu": name,
        "machine": platform.machine(),
        "features": features,
        "kernels": kernels(features),
        "cores": os.cpu_count(),
        "pinned": list(pinned),
        "governor": read(governor) or None,
        "system": platform.platform(),
        "python": platform.python_version(),
        "runtime": "onnxruntime " + onnxruntime.__version__,
    }


# Networks


def protobuf_fields(data: memoryview) -> Iterator[tuple[int, Any]]:
    """Yield the field numbers and values of a protobuf message: integers, or raw bytes."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        # seven bits per byte, lowest first; the high bit marks that more bytes follow
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        # the lowest three bits of a key are the wire type: 0 varint, 1 and 5 fixed size, 2 bytes
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        else:
            size = {1: 8, 5: 4}.get(key & 7) or varint()
            yield key >> 3, data[at : at + size]
            at += size


def initializers(data: bytes) -> Iterator[dict[int, Any]]:
    """Yield the fields of every weight tensor in an ONNX file.

    Field 2 is the data type, 4 the floats, 9 the raw bytes, 14 the data location.
    """
    for field, graph in protobuf_fields(memoryview(data)):
        if field == 7:
            for part, tensor in protobuf_fields(graph):
                if part == 5:
                    yield dict(protobuf_fields(tensor))


def has_graph(data: bytes) -> bool:
    """Whether these bytes look like an ONNX file: a protobuf message with a graph."""
    try:
        return any(field == 7 for field, _ in protobuf_fields(memoryview(data)))
    except IndexError:
        return False


def has_external_data(data: bytes) -> bool:
    """Whether an ONNX file stores weights in another file."""
    return any(tensor.get(14) == 1 for tensor in initializers(data))


def count_weights(data: bytes) -> tuple[int, int]:
    """Count the single-precision weights of a network, and the denormal ones among them.

    Denormals are found by their bits: if the CPU flushes them to zero, comparisons find none.
    """
    import numpy as np

    total = denormal = 0
    for tensor in initializers(data):
        raw = tensor.get(9, tensor.get(4, b""))
        if tensor.get(2) == 1 and isinstance(raw, memoryview) and len(raw) % 4 == 0:
            bits = np.frombuffer(raw, "<u4")
            total += len(bits)
            # a float is denormal if its exponent bits are all zero and its fraction is not
            zero_exponent = (bits & 0x7F800000) == 0
            denormal += int(np.count_nonzero(zero_exponent & ((bits & 0x007FFFFF) != 0)))
    return total, denormal


_EXTERNAL_DATA = "stores its weights in another file; save it as a single file"
_OUT_OF_MEMORY = "needs more memory than this machine has"


class Net:
    """A loaded network and random inputs to time it with."""

    def __init__(self, name: str, data: bytes, shape: Any = None, threads: int = 1) -> None:
        free = _free_memory()
        if free is not None and len(data) * 2 > free:
            raise CoreError(
                f"{name} ({len(data) / 1e6:.0f} MB) does not fit into memory "
                f"({free / 1e6:.0f} MB free)"
            )
        self.name, self.session = name, _session(name, data, threads)
        if has_external_data(data):
            raise CoreError(f"{name} {_EXTERNAL_DATA}")
        notes = _parse_object(self.session.get_modelmeta().custom_metadata_map.get("legr", "{}"))
        self.feed = _random_inputs(name, self.session.get_inputs(), shape, notes.get("input"))
        sizes = {key: list(array.shape) for key, array in self.feed.items()}
        total, denormal = count_weights(data)
        self.facts = {
            "name": name,
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
            "input": sizes if len(sizes) > 1 else next(iter(sizes.values())),
            "weights": total,
            "denormals": denormal,
            "flops": _positive_int(notes.get("flops")),
            "params": _positive_int(notes.get("params")),
            "arch": str(notes.get("arch", "")) or None,
            "weights_sha256": str(notes.get("weights_sha256", "")) or None,
        }
        self.runs = 1
        try:
            self.run()
        except MemoryError:
            raise CoreError(f"{name} {_OUT_OF_MEMORY}") from None
        except Exception as error:
            size = _format_input(self.facts["input"])
            raise CoreError(
                f"{name} fails on an input of {size} ({_first_line(error)}); check --input"
            ) from error

    def run(self) -> float:
        """Run once; return the seconds it took."""
        start = time.perf_counter()
        self.session.run(None, self.feed)
        return time.perf_counter() - start

    def warm_up(self) -> None:
        """Run for a while, and derive the number of runs per turn from the median."""
        times: list[float] = []
        end = time.perf_counter() + WARM_UP
        while len(times) < 3 or time.perf_counter() < end:
            times.append(self.run())
        self.runs = max(2, min(1000, round(TURN / sorted(times)[len(times) // 2])))

    def turn(self) -> list[float]:
        """Return the seconds of each run of one turn, without the first, whose caches are cold."""
        self.run()
        return [self.run() for _ in range(self.runs)]

    def first_output(self) -> list[float]:
        """Return the first output for the timing input, flattened."""
        return [float(value) for value in self.session.run(None, self.feed)[0].ravel()]


def load(name: str, data: bytes, shape: Any, threads: int) -> Net:
    """Load a network; raise CoreError with the reason if it cannot be timed."""
    try:
        return Net(name, data, shape, threads)
    except CoreError:
        raise
    except MemoryError:
        raise CoreError(f"{name} {_OUT_OF_MEMORY}") from None
    except Exception as error:
        text = f"{type(error).__name__}: {_first_line(error)}"
        raise CoreError(f"{name} cannot be timed ({text})") from error


def _session(name: str, data: bytes, threads: int) -> Any:
    """Create an ONNX Runtime session on the CPU that flushes denormals to zero."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = threads
    options.log_severity_level = 3
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    try:
        return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except MemoryError:
        raise CoreError(f"{name} {_OUT_OF_MEMORY}") from None
    except Exception as error:
        text = _first_line(error)
        if "bad_alloc" in text:
            raise CoreError(f"{name} {_OUT_OF_MEMORY}") from error
        if "rotobuf" in text or "ModelProto does not have a graph" in text or not data:
            raise CoreError(f"{name} is not a valid ONNX file") from error
        runtime = f"onnxruntime {onnxruntime.__version__}"
        if "external" in text:
            raise CoreError(f"{name} {_EXTERNAL_DATA}") from error
        raise CoreError(f"{name} cannot run on {runtime}: {text}") from error


DTYPES = {  # numpy's name of each input type that images can have
    "tensor(float)": "f4",
    "tensor(float16)": "f2",
    "tensor(double)": "f8",
    "tensor(uint8)": "u1",
    "tensor(int8)": "i1",
}


def _random_inputs(name: str, inputs: Sequence[Any], requested: Any, stored: Any) -> Facts:
    """Make noise for a network's inputs.

    `requested` and `stored`, from its metadata, are the shape of its only input, or a dict of the
    shapes of several.
    """
    if not inputs:
        raise CoreError(f"{name} has no input, so its time does not depend on one")
    if len(inputs) > 1 and requested is not None and set(requested) != {i.name for i in inputs}:
        names = ", ".join(i.name for i in inputs)
        raise CoreError(f"{name} has several inputs: pass --input NAME=SIZE for each of {names}")
    feed: Facts = {}
    for order, i in enumerate(inputs):
        shapes = (_shape_of(i, requested, len(inputs)), _shape_of(i, stored, len(inputs)))
        feed[i.name] = _random_input(name, i, *shapes, seed=order)
    return feed


def _shape_of(declared: Any, shapes: Any, count: int) -> Any:
    """The shape of one input among those of all; None if there is none."""
    if isinstance(shapes, dict):
        return shapes.get(declared.name)
    return shapes if count == 1 else None


def _random_input(name: str, declared: Any, requested: Any, stored: Any, seed: int) -> Any:
    """Make noise for one input of a network."""
    import numpy as np

    dtype = DTYPES.get(declared.type)
    if dtype is None:
        raise CoreError(f"{name} takes {declared.type}; only floats and bytes are supported")
    if requested is None and isinstance(stored, list) and _fits(declared.shape, stored):
        requested = stored
    size = _input_shape(name, declared.shape, requested)
    pixels = np.random.default_rng(seed).random(size, np.float32)
    # a dtype of one byte per element holds integers
    return (pixels * 127 if dtype[1] == "1" else pixels).astype(dtype)


def _input_shape(
    name: str, declared: Sequence[Any], requested: Sequence[int] | None
) -> tuple[int, ...]:
    """Return the shape of the input to time with: one image, unless the batch size is fixed."""
    batch = _positive_int(declared[0]) or 1 if declared else 1
    if requested is None:
        sizes = [_positive_int(size) for size in declared[1:]]
        if not declared or not all(sizes):
            shown = f" ({_format_shape(declared)})" if declared else ""
            raise CoreError(
                f"{name} takes images of any size{shown}: pass one, as in --input 3x224x224"
            )
        return (batch, *sizes)
    if not _fits(declared, requested):
        raise CoreError(
            f"{name} takes {_format_shape(declared)}, not images of {_format_shape(requested)}"
        )
    return (batch, *requested)


def _fits(declared: Sequence[Any], shape: Sequence[Any]) -> bool:
    """Whether a network takes images of this shape; any size fits where it declares none."""
    if not shape or not all(_positive_int(size) for size in shape):
        return False
    sizes = declared[1:] if declared else [None] * len(shape)
    same = (_positive_int(size) in (None, wanted) for size, wanted in zip(sizes, shape))
    return len(sizes) == len(shape) and all(same)


def _positive_int(value: Any) -> Any:
    """Return a positive 64-bit integer as it is, and None for anything else."""
    return value if type(value) is int and 0 < value < 2**63 else None


def _format_shape(sizes: Sequence[Any]) -> str:
    """Format a shape: `1x3x224x224`."""
    return "x".join(str(size) for size in sizes)


def _format_input(shapes: Any) -> str:
    """Format the shape of an input, or those of several: `image=1x3x96x96, state=1x4`."""
    if isinstance(shapes, dict):
        return ", ".join(f"{name}={_format_shape(shape)}" for name, shape in shapes.items())
    return _format_shape(shapes)


def _parse_object(text: str) -> Facts:
    """Parse a JSON object; empty if the text is anything else."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _first_line(error: BaseException) -> str:
    """Return the first line of a library's message, without locations in its source."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0].split(" : ")[-1]
    for mark in ("Error ", "failed:", "opset versions. ", "] "):
        text = text.rpartition(mark)[2]
    return text[:200]


def _free_memory() -> int | None:
    """Return the bytes of free memory; None if the kernel does not report them."""
    for line in read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


# Measurement


def measure(
    nets: Sequence[Net],
    seconds: float,
    pinned: Sequence[int] = (),
    stopped: Callable[[], bool] = lambda: False,
    report: Callable[[float], None] = lambda _: None,
) -> Facts:
    """Time networks in turns for `seconds` each; ratios are relative to the first network.

    Stops after the last complete round once `stopped` returns true. `report` gets the share done.
    """
    core = pinned[0] if pinned else 0
    before = temperature_c()
    for net in nets:
        if not stopped():
            net.warm_up()
    rounds: list[list[list[float]]] = []  # by round and network, the seconds of each run
    clocks: list[float] = []
    start, total = time.perf_counter(), seconds * len(nets)
    while not stopped() and (time.perf_counter() - start < total or len(rounds) < ROUNDS):
        # every other round runs backwards, so that drift affects all networks alike
        order = range(len(nets)) if len(rounds) % 2 == 0 else range(len(nets) - 1, -1, -1)
        turns = {}
        for i in order:
            if not stopped():
                turns[i] = nets[i].turn()
        if len(turns) == len(nets):
            rounds.append([turns[i] for i in range(len(nets))])
        now = clock_mhz(core)
        clocks += [] if now is None else [now]
        spent = (time.perf_counter() - start) / total
        report(min(1.0, spent, len(rounds) / ROUNDS))
    if not rounds:
        raise CoreError("stopped before anything was measured")
    models = [_summary(net, rounds, i, 0) for i, net in enumerate(nets)]
    heat: Facts = {
        "temperature_c": [before, temperature_c()],
        "clock_mhz": [min(clocks), max(clocks)] if clocks else None,
    }
    return {"models": models, **heat, "notes": _notes(nets, heat, pinned)}


def _summary(net: Net, rounds: list[list[list[float]]], i: int, against: int) -> Facts:
    """Summarize network `i`: latency in ms, and its ratio to network `against`."""
    import numpy as np

    times = np.sort(np.concatenate([turns[i] for turns in rounds])) * 1000
    p5, median, p95 = (float(np.percentile(times, p)) for p in (5, 50, 95))
    ratios = sorted(float(np.median(turns[i]) / np.median(turns[against])) for turns in rounds)
    # order statistics that bound the median with 95 % confidence: n/2 ± 1.96·√n/2
    tail = max(0, int((len(ratios) - 1.96 * len(ratios) ** 0.5) / 2))
    return {
        **net.facts,
        "runs": len(times),
        "median_ms": median,
        "p5_ms": p5,
        "p95_ms": p95,
        "spread": (p95 - p5) / median,
        "ratio": float(np.median(ratios)),
        "ratio_range": [ratios[tail], ratios[-1 - tail]],
    }


def _notes(nets: Sequence[Net], heat: Facts, pinned: Sequence[int]) -> list[str]:
    """List reasons to doubt the results, or to expect others in the user's own program."""
    notes = []
    sizes = {_format_input(net.facts["input"]): net.name for net in nets}
    if len(sizes) > 1:
        each = ", ".join(f"{name} {size}" for size, name in sizes.items())
        notes.append(f"THE INPUT SIZES DIFFER ({each}): ratios are not comparable; pass --input")
    for net in nets:
        bad, total = net.facts["denormals"], net.facts["weights"]
        if bad:
            notes.append(
                f"{net.name} has {bad} denormal weights of {total}, which can slow a CPU down up "
                "to ten times: they were flushed to zero here; set session.set_denormal_as_zero in "
                "your program, too"
            )
    low, high = heat["clock_mhz"] or (1, 1)
    if low < high * (1 - CLOCK_TOLERANCE):
        after_c = heat["temperature_c"][1]
        at = "" if after_c is None else f" at {after_c:.0f} °C"
        notes.append(
            f"the clock varied between {low:.0f} and {high:.0f} MHz{at}: ratios are reliable, "
            "milliseconds less so; fix the clock (on a Jetson: sudo jetson_clocks) and cool the "
            "board"
        )
    if not pinned:
        notes.append("not pinned to a core: this system does not allow it")
    return notes


def result(device: Facts, measured: Facts, against: str, settings: Facts) -> Facts:
    """Assemble the content of bench.json."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "device": {**device, **{key: measured[key] for key in ("temperature_c", "clock_mhz")}},
        "settings": settings,
        "against": against,
        "models": measured["models"],
        "notes": measured["notes"],
    }


# Protocol


def serve(source: Any, send: Callable[[Facts], None]) -> None:
    """Handle requests until the stream closes; a new request stops a running measurement."""
    requests: queue.Queue[Facts | None] = queue.Queue()

    def listen() -> None:
        for line in iter(source.readline, b""):
            request = json.loads(line.decode())
            request["data"] = source.read(request.get("bytes", 0))
            requests.put(request)
        requests.put(None)

    threading.Thread(target=listen, daemon=True).start()
    nets: dict[str, Net] = {}
    pinned: list[int] = []
    threads = 1
    for request in iter(requests.get, None):
        try:
            if request["do"] == "begin":
                pinned = pin(request["threads"], request.get("core"))
                threads = request["threads"]
                send({"device": machine(pinned)})
            elif request["do"] == "load":
                name = request["name"]
                nets[name] = load(name, request.pop("data"), request.get("input"), threads)
                send({"loaded": nets[name].facts})
            elif request["do"] == "drop":
                del nets[request["name"]]
                send({"dropped": request["name"]})
            elif request["do"] == "run":
                send({"output": nets[request["name"]].first_output()})
            elif request["do"] == "measure":
                selected = [nets[name] for name in request["names"]]
                send(
                    {
                        "measured": measure(
                            selected,
                            request["seconds"],
                            pinned,
                            lambda: not requests.empty(),
                            lambda done: send({"progress": done}),
                        )
                    }
                )
        except CoreError as error:
            send({"error": str(error)})
        except Exception as error:
            send({"error": f"{type(error).__name__}: {_first_line(error)}"})


def _json_lines() -> Callable[[Facts], None]:
    """Return a function that prints JSON lines; other output to stdout now goes to stderr."""
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(facts: Facts) -> None:
        stream.write(json.dumps(facts) + "\n")
        stream.flush()

    return send


def main(arguments: Sequence[str]) -> None:
    """Parse the command line; serve legr, or measure files on this machine."""
    parser = argparse.ArgumentParser(description="Time ONNX networks on one core.")
    parser.add_argument("models", nargs="*", metavar="MODEL.onnx")
    parser.add_argument("--seconds", type=float, default=3.0, help="measuring time per network")
    parser.add_argument("--threads", type=int, default=1, help="number of threads; default: 1")
    parser.add_argument("--core", type=int, help="core to run on; default: the fastest")
    parser.add_argument(
        "--input",
        help="size of one image, such as 3x224x224, or of each input: image=3x96x96,state=4",
    )
    parser.add_argument("--against", help="baseline for latency ratios; default: the first")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    send = _json_lines()
    # numpy warns if denormals are flushed to zero
    warnings.filterwarnings("ignore", ".*smallest subnormal.*")
    try:
        import numpy  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        python = sys.executable or "python3"
        text = f"its Python has no {error.name}: {python} -m pip install numpy onnxruntime"
        if not args.serve:
            raise SystemExit("legr_bench: " + text) from None
        send({"error": text})
        return
    if args.serve:
        send({"hello": FORMAT})
        serve(sys.stdin.buffer, send)
        return
    try:
        send(_measure_files(args))
    except (CoreError, OSError, ValueError) as error:
        raise SystemExit(f"legr_bench: {error}") from None


def _parse_input(text: Any) -> Any:
    """Parse `3x224x224`, or `image=3x96x96,state=4` for several inputs; None stays None."""
    if not text:
        return None
    shapes = {}
    for part in text.replace(" ", "").split(","):
        name, _, size = part.rpartition("=")
        if not all(side.isdigit() for side in size.split("x")):
            raise CoreError(f"--input {text}: expected a size such as 3x224x224")
        shapes[name] = [int(side) for side in size.split("x")]
    return shapes[""] if list(shapes) == [""] else shapes


def _measure_files(args: Any) -> Facts:
    """Measure ONNX files on this machine; return the content of bench.json."""
    if not args.models or args.threads < 1 or not 0 < args.seconds < 1e5:
        raise CoreError(
            "expected at least one network, --threads of at least 1 and --seconds above 0"
        )
    shape = _parse_input(args.input)
    names = list(dict.fromkeys(([args.against] if args.against else []) + args.models))
    pinned = pin(args.threads, args.core)
    short = [os.path.basename(name) for name in names]
    nets = []
    for name, base in zip(names, short):
        with open(name, "rb") as file:
            shown = base if short.count(base) == 1 else name
            nets.append(load(shown, file.read(), shape, args.threads))
    measured = measure(nets, args.seconds, pinned)
    settings = {"threads": args.threads, "seconds": args.seconds}
    return result(machine(pinned), measured, nets[0].name, settings)


if __name__ == "__main__":
    main(sys.argv[1:])
