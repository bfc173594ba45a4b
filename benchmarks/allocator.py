"""How much time does keeping freed memory save? Training steps with and without `keep_memory`.

    python benchmarks/allocator.py [ARCH …]

prunes each network to 30 % of its FLOPs and trains it with a batch size of 128 in processes that
take turns; each figure is the median over three processes of the median step.
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
    """Milliseconds per training step in this process."""
    torch.set_num_threads(1)
    device = choose("cpu")
    model = prune(build(Arch(name)), (3, 32, 32), flops=0.3, align="1", ranking="uniform")
    model = model.to(memory_format=torch.channels_last).requires_grad_(True).train()
    trainer = Trainer(model, sgd(model, 0.01), half=half_precision(device) if amp else None)
    images = torch.rand(128, 3, 32, 32).to(memory_format=torch.channels_last)
    labels = torch.randint(10, (128,))
    seconds = []
    for _ in range(3 + STEPS):
        start = time.perf_counter()
        trainer.step(images, labels)
        seconds.append(time.perf_counter() - start)
    return 1000 * median(seconds[3:])  # the first three warm up


def main(*names: str) -> None:
    """Print a row for each network and precision."""
    print("| network, 30 % FLOPs | returned, ms | kept, ms | kept / returned |\n|---|---|---|---|")
    for name in names or ("resnet20", "resnet56"):
        for amp in ("", "amp"):
            times: dict[str, list[float]] = {"returned": [], "kept": []}
            for _ in range(3):
                for memory, steps in times.items():
                    command = [sys.executable, __file__, "--step", name, amp]
                    env = {**os.environ, "BENCHMARK_MEMORY": memory}
                    steps.append(float(subprocess.check_output(command, env=env, text=True)))
            returned, kept = map(median, times.values())
            precision = "bfloat16" if amp else "single precision"
            print(
                f"| {name}, {precision} | {returned:.0f} | {kept:.0f} | {kept / returned:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--step"]:
        if os.environ["BENCHMARK_MEMORY"] == "returned":
            os.environ["GLIBC_TUNABLES"] = (
                ""  # legr leaves an allocator that the user configured alone
            )
        print(step_ms(sys.argv[2], bool(sys.argv[3])))
        assert keep_memory() is (os.environ["BENCHMARK_MEMORY"] == "kept")
    else:
        main(*sys.argv[1:])
