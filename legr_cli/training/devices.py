"""Devices: which one to use, CPU cores, allocator tuning, seeding and half precision."""

import contextlib
import ctypes
import functools
import os
import sys
from collections.abc import Iterator

import torch

from legr_cli.errors import SettingError
from legr_cli.progress import Message, Report


def cores() -> int:
    """Number of CPU cores that this process may use."""
    has_affinity = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1


def choose(name: str, worker: int = 0) -> torch.device:
    """Choose a device from `auto`, `cpu`, `cuda`, `cuda:1` or `mps`.

    With plain `cuda`, workers are spread over all GPUs. On the CPU, this also tells the allocator
    to keep freed memory; see `keep_memory`.
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
            raise SettingError(f"--device {name}: torch finds {count} CUDA devices")
        return torch.device("cuda", worker % count if device.index is None else device.index)
    if device.type == "mps" and not _has_mps():
        raise SettingError("--device mps: torch finds no Apple GPU")
    if device.type not in ("cpu", "mps"):
        raise SettingError(f"--device {name}: expected auto, cpu, cuda, cuda:1, … or mps")
    if device.type == "cpu":
        keep_memory()
    return device


@functools.cache
def keep_memory() -> bool:
    """Tell glibc to keep freed memory instead of returning it to the kernel; return success.

    By default large blocks go back to the kernel, which has to zero them again for every batch: an
    eighth of the time of a ResNet-20 training step. Does nothing if the user has configured glibc's
    allocator.
    """
    set_by_user = {
        "MALLOC_TRIM_THRESHOLD_",
        "MALLOC_MMAP_THRESHOLD_",
        "GLIBC_TUNABLES",
        "LD_PRELOAD",
    }
    if sys.platform != "linux" or set_by_user & set(os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # absent from musl
    if mallopt is None:
        return False
    trim_threshold, mmap_threshold = -1, -3  # from malloc.h; the second is limited to 32 MB
    return bool(mallopt(trim_threshold, 2**31 - 1) and mallopt(mmap_threshold, 2**25))


@contextlib.contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Seed torch's global generators (used by dropout, for instance) within this block."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


def half_precision(device: torch.device) -> torch.dtype | None:
    """The dtype of `--amp`: bfloat16 where the hardware supports it, float16 on older GPUs.

    None where neither helps: emulated bfloat16 on a CPU is ten times slower than float32.
    """
    if device.type == "cuda":
        has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if has_bfloat16 else torch.float16
    if device.type != "cpu":
        return None
    cpu = getattr(torch.cpu, "get_capabilities", dict[str, bool])()
    return torch.bfloat16 if cpu.get("avx512_bf16") or cpu.get("amx_bf16") else None


def amp_helps(device: torch.device, progress: Report) -> bool:
    """Whether mixed precision is faster on this device; reports a message if it is not."""
    if half_precision(device) is not None:
        return True
    progress(Message(f"ignoring --amp: mixed precision is slower on this {device.type}"))
    return False


def _has_mps() -> bool:
    """Whether torch can use an Apple GPU."""
    return torch.backends.mps.is_available()
