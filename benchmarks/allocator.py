"""What it saves that legr has glibc keep freed memory: steps of training with and without.

`python benchmarks/allocator.py [ARCH …]`: each network is cut to 30 % of its FLOPs and trained on a
batch of 128, in processes that take turns; the median step of three processes each.
"""

import os
import subprocess
import sys
import time
from statistics import median

import torch

from legr_cli import prune
from legr_cli.models.registry import Arch, build
from legr_cli.training.devices import choose, half_precision, keep_memory
from legr_cli.training.loop import Trainer, sgd

STEPS = 15


def step_ms(name: str, amp: bool) -> float:
    """Milliseconds of a step, in this process."""
    torch.set_num_threads(1)
    device = choose("cpu")
    model = prune(build(Arch(name)), (3, 32, 32), flops=0.3, align="1", ranking="uniform")
    model = model.to(memory_format=torch.channels_last).requires_grad_(True).train()
    trainer = Trainer(model, sgd(model, 0.01), half=half_precision(device) if amp else None)
    images = torch.rand(128, 3, 32, 32).to(memory_format=torch.channels_last)
    labels = torch.randint(10, (128,))
    took = []
    for _ in range(3 + STEPS):
        begun = time.perf_counter()
        trainer.step(images, labels)
        took.append(time.perf_counter() - begun)
    return 1000 * median(took[3:])


def main(*names: str) -> None:
    """A row for each network and precision."""
    print(
        "| network, 30 % FLOPs | given back, ms | kept, ms | kept / given back |\n|---|---|---|---|"
    )
    for name in names or ("resnet20", "resnet56"):
        for amp in ("", "amp"):
            found: dict[str, list[float]] = {"given back": [], "kept": []}
            for _ in range(3):
                for kind, own in found.items():
                    line = [sys.executable, __file__, "--step", name, amp]
                    env = {**os.environ, "LEGR_KEEP": kind}
                    own.append(float(subprocess.check_output(line, env=env, text=True)))
            back, kept = map(median, found.values())
            kind = "bfloat16" if amp else "single precision"
            print(f"| {name}, {kind} | {back:.0f} | {kept:.0f} | {kept / back:.2f} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--step"]:
        if os.environ["LEGR_KEEP"] == "given back":
            os.environ["GLIBC_TUNABLES"] = ""  # as if the user had set it: nothing is changed
        print(step_ms(sys.argv[2], bool(sys.argv[3])))
        assert keep_memory() is (os.environ["LEGR_KEEP"] == "kept")
    else:
        main(*sys.argv[1:])
