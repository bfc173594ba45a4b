"""Which device to compute on, with how many threads, and what the allocator keeps."""

import contextlib
import ctypes
import functools
import os
import sys
from collections.abc import Iterator

import torch

from legr_cli.errors import SettingError


def cores() -> int:
    """Cores that this process may use."""
    known = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1


def choose(name: str, worker: int = 0) -> torch.device:
    """`auto`, `cpu`, `cuda`, `cuda:1` or `mps`; workers spread over all GPUs if none is named.

    For a CPU, it has the allocator keep freed memory from then on.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if _has_mps() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise SettingError(f"--device {name}: expected auto, cpu, cuda, cuda:1, … or mps") from None
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            raise SettingError(f"--device {name}: torch sees {count} CUDA devices here")
        return torch.device("cuda", worker % count if device.index is None else device.index)
    if device.type == "mps" and not _has_mps():
        raise SettingError("--device mps: torch sees no Apple GPU here")
    if device.type not in ("cpu", "mps"):
        raise SettingError(f"--device {name}: expected auto, cpu, cuda, cuda:1, … or mps")
    if device.type == "cpu":
        keep_memory()
    return device


@functools.cache
def keep_memory() -> bool:
    """Have glibc keep what is freed for the next step; whether it does.

    As a rule it gives large blocks back to the kernel, which must clear them again for every batch:
    an eighth of a training step of ResNet-20. Whoever has set glibc's own variables knows better.
    """
    set_by_user = {
        "MALLOC_TRIM_THRESHOLD_",
        "MALLOC_MMAP_THRESHOLD_",
        "GLIBC_TUNABLES",
        "LD_PRELOAD",
    }
    if sys.platform != "linux" or set_by_user & set(os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is None:
        return False
    trim_threshold, mmap_threshold = -1, -3  # as in malloc.h; the second can be 32 MB at most
    return bool(mallopt(trim_threshold, 2**31 - 1) and mallopt(mmap_threshold, 2**25))


@contextlib.contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """What a network draws by itself (dropout and the like) comes from this seed, in this block."""
    own = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=own):
        torch.manual_seed(seed)
        yield


def half_precision(device: torch.device) -> torch.dtype | None:
    """What `--amp` computes in: bfloat16 where the hardware has it, float16 on older GPUs.

    None where neither would help: a CPU without bfloat16 takes ten times as long with it.
    """
    if device.type == "cuda":
        modern = torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if modern else torch.float16
    if device.type != "cpu":
        return None
    can = getattr(torch.cpu, "get_capabilities", dict[str, bool])()
    return torch.bfloat16 if can.get("avx512_bf16") or can.get("amx_bf16") else None


def _has_mps() -> bool:
    """Whether there is an Apple GPU."""
    return torch.backends.mps.is_available()
