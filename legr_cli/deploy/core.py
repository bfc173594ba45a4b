"""Times ONNX networks on one core. One file, for Python 3.8 or later with numpy and onnxruntime.

On a board:  python3 legr_bench.py dense.onnx small.onnx > bench.json

legr runs this file in a process of its own, here or at the other end of an ssh, and talks to it
through its standard streams (`--serve`): a line of JSON for each request, the bytes of a network
behind it, and lines of JSON for answers. Networks stay in memory: nothing is written to a disk.

Networks take turns of a twentieth of a second or so, over and over. The first run of a turn finds
the caches full of another network, and does not count. A ratio is the median over all rounds of
one turn over another of the same round: what slows the machine down for a second slows both.
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
TURN = 0.05  # seconds that a network runs before the next one has its turn
WARM_UP = 0.25  # seconds, and three runs at least
ROUNDS = 5  # at least, however long they take
STEADY = 0.05  # share by which a clock may move

Facts = Dict[str, Any]  # evaluated: not `dict`, for Python 3.8


class Trouble(Exception):  # noqa: N818
    """What the user can do something about, in one line."""


# The machine


def read(path: str) -> str:
    """The text of a file of the kernel's, or nothing."""
    try:
        with open(path, "rb") as file:
            return file.read().decode("utf-8", "replace").strip("\0\n ")
    except OSError:
        return ""


FEATURES = (
    "sse4_2 avx avx2 fma avx512f avx512_vnni avx_vnni amx_tile asimd asimddp asimdhp i8mm sve"
)
CORES = {  # of ARM's and NVIDIA's, by implementer and part
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
    """Name and features of a core, as the kernel says."""
    blocks = []
    for block in read("/proc/cpuinfo").split("\n\n"):
        pairs = (line.partition(":") for line in block.splitlines())
        blocks.append({key.strip(): value.strip() for key, _, value in pairs})
    known = [b for b in blocks if b.get("processor") == str(core)] or blocks
    facts = known[0]
    part = CORES.get(f"{facts.get('CPU implementer')} {facts.get('CPU part')}")
    name = facts.get("model name") or part or platform.processor() or platform.machine()
    have = set((facts.get("flags") or facts.get("Features") or "").split())
    return name, [feature for feature in FEATURES.split() if feature in have]


def kernels(features: Sequence[str]) -> str:
    """The kind of kernels that ONNX Runtime uses there, as `legr prune --align` names them."""
    if platform.machine().lower() in ("aarch64", "arm64", "armv7l", "armv8l"):
        return "arm"
    return "avx512" if "avx512f" in features else "avx2" if "avx2" in features else "other"


def clock_mhz(core: int | None, which: str = "scaling_cur_freq") -> float | None:
    """How fast a core runs now, where the kernel says."""
    text = read(f"/sys/devices/system/cpu/cpu{core or 0}/cpufreq/{which}")
    return int(text) / 1000 if text.isdigit() else None


def temperature_c() -> float | None:
    """Of the hottest place, where the kernel says."""
    root = "/sys/class/thermal"
    zones = os.listdir(root) if os.path.isdir(root) else []
    found = [read(f"{root}/{zone}/temp") for zone in zones if zone.startswith("thermal_zone")]
    return max((int(text) / 1000 for text in found if text.lstrip("-").isdigit()), default=None)


def pin(threads: int, core: int | None = None) -> list[int]:
    """Stay on as many cores as there are threads: the fastest, and of equals the last.

    The first core answers most interrupts. Empty where the system does not let us choose.
    """
    if not hasattr(os, "sched_setaffinity"):
        return []
    allowed = sorted(os.sched_getaffinity(0))
    if threads > len(allowed):
        raise Trouble(f"--threads {threads}: there are {len(allowed)} cores to run on")
    by_speed = sorted(allowed, key=lambda c: (clock_mhz(c, "cpuinfo_max_freq") or 0, c))
    chosen = by_speed[-threads:] if core is None else [core]
    if core is not None and (core not in allowed or threads > 1):
        raise Trouble(f"--core {core}: expected one of {allowed}, for one thread")
    try:
        os.sched_setaffinity(0, chosen)
    except OSError:
        return []
    return chosen


def machine(pinned: Sequence[int]) -> Facts:
    """What is measured on."""
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


# A network


def messages(data: memoryview) -> Iterator[tuple[int, Any]]:
    """The fields of a message as protobuf writes it: numbers, and the bytes of longer ones."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = number()
        if key & 7 == 0:
            yield key >> 3, number()
        else:
            size = {1: 8, 5: 4}.get(key & 7) or number()
            yield key >> 3, data[at : at + size]
            at += size


def tensors(data: bytes) -> Iterator[dict[int, Any]]:
    """The weights in an ONNX file, as it has them; 2: type, 4: floats, 9: raw bytes, 14: place."""
    for field, graph in messages(memoryview(data)):
        if field == 7:
            for part, tensor in messages(graph):
                if part == 5:
                    yield dict(messages(tensor))


def has_graph(data: bytes) -> bool:
    """Whether these bytes may be an ONNX file."""
    try:
        return any(field == 7 for field, _ in messages(memoryview(data)))
    except IndexError:
        return False


def elsewhere(data: bytes) -> bool:
    """Whether an ONNX file keeps weights in another file."""
    return any(tensor.get(14) == 1 for tensor in tensors(data))


def weights(data: bytes) -> tuple[int, int]:
    """How many single-precision weights a network has, and how many of them are denormal.

    By their bits: where denormals are taken as zero, comparing numbers would find none.
    """
    import numpy as np

    total = denormal = 0
    for tensor in tensors(data):
        raw = tensor.get(9, tensor.get(4, b""))
        if tensor.get(2) == 1 and isinstance(raw, memoryview) and len(raw) % 4 == 0:
            bits = np.frombuffer(raw, "<u4")
            total += len(bits)
            small = (bits & 0x7F800000) == 0
            denormal += int(np.count_nonzero(small & ((bits & 0x007FFFFF) != 0)))
    return total, denormal


_APART = "keeps its weights in another file: save it as one file"
_TOO_LARGE = "needs more memory than there is"


class Net:
    """A network in memory, and images to show it."""

    def __init__(
        self, name: str, data: bytes, shape: Sequence[int] | None = None, threads: int = 1
    ) -> None:
        room = _memory()
        if room is not None and len(data) * 2 > room:
            raise Trouble(
                f"{name} has {len(data) / 1e6:.0f} MB, and {room / 1e6:.0f} MB of memory are free: "
                "it does not fit"
            )
        self.name, self.session = name, _session(name, data, threads)
        if elsewhere(data):
            raise Trouble(f"{name} {_APART}")
        notes = _object(self.session.get_modelmeta().custom_metadata_map.get("legr", "{}"))
        self.feed = _images(name, self.session.get_inputs(), shape, notes.get("input"))
        [images] = self.feed.values()
        total, denormal = weights(data)
        self.facts = {
            "name": name,
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
            "input": list(images.shape),
            "weights": total,
            "denormals": denormal,
            "flops": _count(notes.get("flops")),
            "params": _count(notes.get("params")),
            "arch": str(notes.get("arch", "")) or None,
            "weights_sha256": str(notes.get("weights_sha256", "")) or None,
        }
        self.runs = 1
        try:
            self.run()
        except MemoryError:
            raise Trouble(f"{name} {_TOO_LARGE}") from None
        except Exception as error:
            text = f"{name} fails on images of {_times(images.shape)} ({_first_line(error)})"
            raise Trouble(f"{text}: is --input right?") from error

    def run(self) -> float:
        """Seconds of one run."""
        begun = time.perf_counter()
        self.session.run(None, self.feed)
        return time.perf_counter() - begun

    def warm_up(self) -> None:
        """Run for a while, and learn how many runs make a turn."""
        times: list[float] = []
        end = time.perf_counter() + WARM_UP
        while len(times) < 3 or time.perf_counter() < end:
            times.append(self.run())
        self.runs = max(2, min(1000, round(TURN / sorted(times)[len(times) // 2])))

    def turn(self) -> list[float]:
        """Seconds of the runs of one turn; the first finds cold caches and does not count."""
        self.run()
        return [self.run() for _ in range(self.runs)]

    def answer(self) -> list[float]:
        """The numbers that it gives for its images."""
        return [float(value) for value in self.session.run(None, self.feed)[0].ravel()]


def load(name: str, data: bytes, shape: Sequence[int] | None, threads: int) -> Net:
    """A network, or the reason why it cannot be timed."""
    try:
        return Net(name, data, shape, threads)
    except Trouble:
        raise
    except MemoryError:
        raise Trouble(f"{name} {_TOO_LARGE}") from None
    except Exception as error:
        text = f"{type(error).__name__}: {_first_line(error)}"
        raise Trouble(f"{name} cannot be timed ({text})") from error


def _session(name: str, data: bytes, threads: int) -> Any:
    """What ONNX Runtime runs a network with."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = threads
    options.log_severity_level = 3
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    try:
        return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except MemoryError:
        raise Trouble(f"{name} {_TOO_LARGE}") from None
    except Exception as error:
        text = _first_line(error)
        if "bad_alloc" in text:
            raise Trouble(f"{name} {_TOO_LARGE}") from error
        if "rotobuf" in text or "ModelProto does not have a graph" in text or not data:
            raise Trouble(f"{name} is no ONNX file") from error
        runtime = f"onnxruntime {onnxruntime.__version__}"
        if "external" in text:
            raise Trouble(f"{name} {_APART}") from error
        raise Trouble(f"{name} cannot run on {runtime}: {text}") from error


KINDS = {
    "tensor(float)": "f4",
    "tensor(float16)": "f2",
    "tensor(double)": "f8",
    "tensor(uint8)": "u1",
    "tensor(int8)": "i1",
}


def _images(name: str, inputs: Sequence[Any], asked: Sequence[int] | None, known: Any) -> Facts:
    """Images of noise for the one input of a network; `known` is the size that its file names."""
    import numpy as np

    if len(inputs) != 1:
        names = ", ".join(i.name for i in inputs) or "none"
        raise Trouble(f"{name} has {len(inputs)} inputs ({names}): legr times networks with one")
    own, kind = inputs[0].shape, KINDS.get(inputs[0].type)
    if kind is None:
        raise Trouble(f"{name} takes {inputs[0].type}: images are of floats or bytes")
    if asked is None and isinstance(known, list) and _fits(own, known):
        asked = known
    size = _shape(name, own, asked)
    pixels = np.random.default_rng(0).random(size, np.float32)
    return {inputs[0].name: (pixels * 127 if kind[1] == "1" else pixels).astype(kind)}


def _shape(name: str, own: Sequence[Any], asked: Sequence[int] | None) -> tuple[int, ...]:
    """The shape of the images to show: one image, where the network leaves it open."""
    first = _count(own[0]) or 1 if own else 1
    if asked is None:
        rest = [_count(side) for side in own[1:]]
        if not own or not all(rest):
            sides = f" ({_times(own)})" if own else ""
            raise Trouble(
                f"{name} takes images of any size{sides}: pass one, as in --input 3x224x224"
            )
        return (first, *rest)
    if not _fits(own, asked):
        raise Trouble(f"{name} takes {_times(own)}, not images of {_times(asked)}")
    return (first, *asked)


def _fits(own: Sequence[Any], asked: Sequence[Any]) -> bool:
    """Whether an image has sides that a network takes; one without sides takes any."""
    if not asked or not all(_count(side) for side in asked):
        return False
    sides = own[1:] if own else [None] * len(asked)
    same = (_count(side) in (None, want) for side, want in zip(sides, asked))
    return len(sides) == len(asked) and all(same)


def _count(number: Any) -> Any:
    """A whole number from 1 on, as machines have them; None for anything else."""
    return number if type(number) is int and 0 < number < 2**63 else None


def _times(sides: Sequence[Any]) -> str:
    """`1x3x224x224`."""
    return "x".join(str(side) for side in sides)


def _object(text: str) -> Facts:
    """An object in JSON; an empty one for anything else."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _first_line(error: BaseException) -> str:
    """What a library says was wrong, in one line, without the places in its source."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0].split(" : ")[-1]
    for mark in ("Error ", "failed:", "opset versions. ", "] "):
        text = text.rpartition(mark)[2]
    return text[:200]


def _memory() -> int | None:
    """Bytes that are free, where the kernel says."""
    for line in read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


# The measurement


def measure(
    nets: Sequence[Net],
    seconds: float,
    pinned: Sequence[int] = (),
    stopped: Callable[[], bool] = lambda: False,
    tell: Callable[[float], None] = lambda _: None,
) -> Facts:
    """Let the networks take turns for so many seconds each; ratios are to the first of them."""
    core = pinned[0] if pinned else 0
    before = temperature_c()
    for net in nets:
        if not stopped():
            net.warm_up()
    rounds: list[list[list[float]]] = []  # by round and network, the seconds of a turn
    clocks: list[float] = []
    begun, whole = time.perf_counter(), seconds * len(nets)
    while not stopped() and (time.perf_counter() - begun < whole or len(rounds) < ROUNDS):
        order = range(len(nets)) if len(rounds) % 2 == 0 else range(len(nets) - 1, -1, -1)
        turns = {}
        for i in order:
            if not stopped():
                turns[i] = nets[i].turn()
        if len(turns) == len(nets):
            rounds.append([turns[i] for i in range(len(nets))])
        now = clock_mhz(core)
        clocks += [] if now is None else [now]
        spent = (time.perf_counter() - begun) / whole
        tell(min(1.0, spent, len(rounds) / ROUNDS))
    if not rounds:
        raise Trouble("stopped before anything was measured")
    models = [_summary(net, rounds, i, 0) for i, net in enumerate(nets)]
    heat: Facts = {
        "temperature_c": [before, temperature_c()],
        "clock_mhz": [min(clocks), max(clocks)] if clocks else None,
    }
    return {"models": models, **heat, "notes": _notes(nets, heat, pinned)}


def _summary(net: Net, rounds: list[list[list[float]]], i: int, against: int) -> Facts:
    """Median, spread and ratio of one network."""
    import numpy as np

    times = np.sort(np.concatenate([turns[i] for turns in rounds])) * 1000
    p5, median, p95 = (float(np.percentile(times, p)) for p in (5, 50, 95))
    ratios = sorted(float(np.median(turns[i]) / np.median(turns[against])) for turns in rounds)
    tail = max(0, int((len(ratios) - 1.96 * len(ratios) ** 0.5) / 2))  # 95 % of medians lie inside
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
    """What makes these figures doubtful, or other than those of the user's own program."""
    notes = []
    sizes = {_times(net.facts["input"]): net.name for net in nets}
    if len(sizes) > 1:
        each = ", ".join(f"{name} {size}" for size, name in sizes.items())
        notes.append(f"THE IMAGES DIFFER IN SIZE ({each}): such ratios mean little; pass --input")
    for net in nets:
        bad, total = net.facts["denormals"], net.facts["weights"]
        if bad:
            notes.append(
                f"{net.name} has {bad} denormal weights of {total}, on which CPUs are up to ten "
                "times slower: they were taken as zero here; set session.set_denormal_as_zero in "
                "your program, too"
            )
    low, high = heat["clock_mhz"] or (1, 1)
    if low < high * (1 - STEADY):
        hot = heat["temperature_c"][1]
        at = "" if hot is None else f" at {hot:.0f} °C"
        notes.append(
            f"the clock moved between {low:.0f} and {high:.0f} MHz{at}: ratios hold, milliseconds "
            "less; fix the clock (on a Jetson: sudo jetson_clocks) and let it cool"
        )
    if not pinned:
        notes.append("not pinned to a core: this system does not allow it")
    return notes


def result(device: Facts, found: Facts, against: str, settings: Facts) -> Facts:
    """What bench.json holds."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "device": {**device, **{key: found[key] for key in ("temperature_c", "clock_mhz")}},
        "settings": settings,
        "against": against,
        "models": found["models"],
        "notes": found["notes"],
    }


# Talking to legr


def serve(source: Any, say: Callable[[Facts], None]) -> None:
    """Answer requests until the other side is gone; a request ends a measurement under way."""
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
                say({"device": machine(pinned)})
            elif request["do"] == "load":
                name = request["name"]
                nets[name] = load(name, request.pop("data"), request.get("input"), threads)
                say({"loaded": nets[name].facts})
            elif request["do"] == "drop":
                del nets[request["name"]]
                say({"dropped": request["name"]})
            elif request["do"] == "answer":
                say({"answer": nets[request["name"]].answer()})
            elif request["do"] == "measure":
                chosen = [nets[name] for name in request["names"]]
                say(
                    {
                        "measured": measure(
                            chosen,
                            request["seconds"],
                            pinned,
                            lambda: not requests.empty(),
                            lambda done: say({"progress": done}),
                        )
                    }
                )
        except Trouble as error:
            say({"trouble": str(error)})
        except Exception as error:
            say({"trouble": f"{type(error).__name__}: {_first_line(error)}"})


def _speaker() -> Callable[[Facts], None]:
    """Lines of JSON on stdout, which nothing else may write to from now on."""
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(facts: Facts) -> None:
        stream.write(json.dumps(facts) + "\n")
        stream.flush()

    return say


def main(words: Sequence[str]) -> None:
    """The command line of this file where it stands alone."""
    parser = argparse.ArgumentParser(description="Times ONNX networks on one core.")
    parser.add_argument("models", nargs="*", metavar="MODEL.onnx")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each network")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--core", type=int, help="the core to run on; default: the fastest")
    parser.add_argument("--input", help="size of one image, such as 3x224x224")
    parser.add_argument("--against", help="the network that ratios are to; default: the first")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(words)
    say = _speaker()
    # numpy misses the denormals that are taken as zero
    warnings.filterwarnings("ignore", ".*smallest subnormal.*")
    try:
        import numpy  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        python = sys.executable or "python3"
        text = f"its Python has no {error.name}: {python} -m pip install numpy onnxruntime"
        if not args.serve:
            raise SystemExit("legr_bench: " + text) from None
        say({"trouble": text})
        return
    if args.serve:
        say({"hello": FORMAT})
        serve(sys.stdin.buffer, say)
        return
    try:
        say(_alone(args))
    except (Trouble, OSError, ValueError) as error:
        raise SystemExit(f"legr_bench: {error}") from None


def _alone(args: Any) -> Facts:
    """Measure files of this machine."""
    if not args.models or args.threads < 1 or not 0 < args.seconds < 1e5:
        raise Trouble("name networks; --threads from 1, --seconds over 0")
    sides = args.input.split("x") if args.input else []
    if not all(side.isdigit() for side in sides):
        raise Trouble(f"--input {args.input}: expected sides such as 3x224x224")
    shape = [int(side) for side in sides] or None
    names = list(dict.fromkeys(([args.against] if args.against else []) + args.models))
    pinned = pin(args.threads, args.core)
    short = [os.path.basename(name) for name in names]
    nets = []
    for name, base in zip(names, short):
        with open(name, "rb") as file:
            shown = base if short.count(base) == 1 else name
            nets.append(load(shown, file.read(), shape, args.threads))
    found = measure(nets, args.seconds, pinned)
    settings = {"threads": args.threads, "seconds": args.seconds}
    return result(machine(pinned), found, nets[0].name, settings)


if __name__ == "__main__":
    main(sys.argv[1:])
