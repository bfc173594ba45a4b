"""CIFAR-10 with real pre-trained ResNets: what docs/results.md has of it, by legr commands alone.

    python benchmarks/cifar10/run.py WEIGHTS CIFAR10 docs/results/cifar10 [STAGE …]

WEIGHTS is a folder with resnet20-cifar10.th and resnet56-cifar10.th, CIFAR10 one with the images. A
stage that is done is not done again, and one that was stopped goes on: searches, trainings and
comparisons have journals of their own. Raw outputs stay in the folder; weights are not committed.
"""

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

BUDGETS = [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
FINETUNE = ["--fitness", "finetune", "--steps", "50"]


class Bench:
    """Where things are, and how a command is run."""

    def __init__(self, weights: Path, images: Path, out: Path) -> None:
        self.weights, self.out = weights, out
        self.data = ["--data", f"cifar10:{images}", "--normalize", "imagenet"]

    def dense(self, arch: str) -> list[str]:
        """A checkpoint and its architecture."""
        return [str(self.weights / f"{arch}-cifar10.th"), "--arch", arch]

    def legr(self, *words: object, result: Path | None = None) -> None:
        """Run a command; `result` has its JSON, and says that it is done."""
        if result is not None and result.exists():
            return
        line = ["legr", *map(str, words), *(["--json"] if result else [])]
        print(f"+ {shlex.join(line)}", flush=True)
        begun = time.perf_counter()
        done = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True)
        print(f"  {time.perf_counter() - begun:.0f} s", flush=True)
        if result is not None:
            result.write_text(done.stdout)

    def compare(self, name: str, arch: str, *words: object) -> None:
        """A comparison; its folder tells how far it is."""
        out = self.out / name
        if not (out / "compare.json").exists():
            go_on = ["--resume"] if (out / "compare.jsonl").exists() else []
            self.legr("compare", *self.dense(arch), *self.data, *words, *go_on, "--out", out)

    def tune(self, net: Path, epochs: int, *words: object) -> Path:
        """Fine-tune a network; beside it what came of it."""
        out = net.with_name(f"{net.stem}-tuned.safetensors")
        args = ("--recipe", "quick", "--epochs", epochs, *words, "--resume", "--out", out)
        self.legr("finetune", net, *self.data, *args, result=out.with_suffix(".json"))
        return out

    def folder(self, name: str) -> Path:
        """A folder of a stage."""
        (self.out / name).mkdir(parents=True, exist_ok=True)
        return self.out / name


def resnet20(bench: Bench) -> None:
    """LeGR, uniform and norm at seven budgets with three seeds."""
    methods = ("--methods", "legr,uniform,norm", "--repeats", 3, "--align", 1)
    bench.compare("resnet20", "resnet20", *methods, *FINETUNE, "--candidates", 120, "--epochs", 1)


def resnet56(bench: Bench) -> None:
    """The same at 47 % and 20 % with a ranking learned at 20 % by BatchNorm statistics."""
    methods = ("--methods", "legr,uniform,norm", "--flops", "0.2,0.47", "--align", 1)
    search = ("--fitness", "bn", "--candidates", 400)
    bench.compare("resnet56", "resnet56", *methods, *search, "--epochs", 5)


def best(bench: Bench) -> None:
    """ResNet-56 at 47 % as good as 20 epochs make it, and what a teacher adds to five."""
    folder, ranking = bench.folder("best"), bench.out / "resnet56/rankings/legr-seed0.json"
    teacher = ("--teacher", bench.dense("resnet56")[0])
    for name, epochs in (("taught", 5), ("long", 20)):
        net = folder / f"{name}.safetensors"
        cut = ("--ranking", ranking, "--flops", 0.47, "--align", 1, "--out", net)
        bench.legr("prune", *bench.dense("resnet56"), *cut, result=folder / f"{name}-pruned.json")
        bench.tune(net, epochs, *teacher)


def zeta(bench: Bench) -> None:
    """ResNet-20: rankings learned at 20, 40, 60 and 80 %, each used at all budgets."""
    for share in (0.2, 0.4, 0.6, 0.8):
        search = ("--search-flops", share, *FINETUNE, "--candidates", 60)
        words = ("--methods", "legr", "--align", 1, *search, "--epochs", 1)
        bench.compare(f"zeta{share * 100:.0f}", "resnet20", *words)


def tau(bench: Bench) -> None:
    """ResNet-20 at 30 %: 16 candidates by every fitness, and after two epochs."""
    folder = bench.folder("tau")
    pool = ("--candidates", 16, "--population", 16, "--sample", 16, "--mutate", 0.3)
    base = [*bench.dense("resnet20"), *bench.data, "--flops", 0.3, "--align", 1, *pool]
    base += ["--start", "standard", "--resume", "--out"]
    kinds = {"bn": ["--fitness", "bn"], "0": ["--fitness", "none"]}
    kinds |= {str(n): ["--fitness", "finetune", "--steps", str(n)] for n in (10, 50, 200)}
    for name, words in kinds.items():
        bench.legr(
            "learn", *base, folder / f"tau-{name}.json", *words, result=folder / f"{name}.json"
        )
    _tuned(bench, _candidates(folder / "tau-bn.json", range(16), folder), 0.3)


def candidates(bench: Bench) -> None:
    """ResNet-20 at 20 %: the best of the first 50, 100, 200 and 400 candidates."""
    folder = bench.folder("candidates")
    base = [*bench.dense("resnet20"), *bench.data, "--flops", 0.2, "--align", 1, *FINETUNE]
    out = folder / "search.json"
    bench.legr("learn", *base, "--resume", "--out", out, result=folder / "learn.json")
    lines = _history(out)
    firsts = (lines[:count] for count in (50, 100, 200, 400))
    bests = [max(some, key=lambda line: line["accuracy"])["candidate"] for some in firsts]
    _tuned(bench, _candidates(out, dict.fromkeys(bests), folder), 0.2)


def latency(bench: Bench) -> None:
    """Aligned and not, on this CPU."""
    folder = bench.folder("latency")
    for arch in ("resnet20", "resnet56"):
        ranking = bench.out / arch / "rankings/legr-seed0.json"
        nets = []
        for align in ("auto", "1"):
            into = folder / f"{arch}-align-{align}"
            cut = ("--ranking", ranking, "--flops", "0.2:0.8:0.1", "--align", align)
            bench.legr("prune", *bench.dense(arch), *cut, "--out", into)
            nets += sorted(into.glob("*.safetensors"))
        against = ("--against", bench.dense(arch)[0], "--seconds", 2)
        result = folder / f"{arch}-bench.json"
        if not result.exists():
            bench.legr("bench", *nets, *against, "--out", result)


def _tuned(bench: Bench, rankings: list[Path], share: float) -> None:
    """ResNet-20, cut by each of these rankings and trained for two epochs."""
    for ranking in rankings:
        net = ranking.with_suffix(".safetensors")
        cut = ("--ranking", ranking, "--flops", share, "--align", 1, "--out", net)
        bench.legr("prune", *bench.dense("resnet20"), *cut)
        bench.tune(net, 2)


def _history(ranking: Path) -> list[dict]:
    """The candidates of a search, in order."""
    lines = ranking.with_suffix(".history.jsonl").read_text().splitlines()[1:]
    return sorted(map(json.loads, lines), key=lambda line: line["candidate"])


def _candidates(ranking: Path, numbers: object, folder: Path) -> list[Path]:
    """Some candidates of a search as rankings of their own."""
    data, lines, made = json.loads(ranking.read_text()), _history(ranking), []
    for number in numbers:
        for row, alpha, kappa in zip(
            data["layers"], lines[number]["alpha"], lines[number]["kappa"], strict=True
        ):
            row["alpha"], row["kappa"] = alpha, kappa
        made.append(folder / f"candidate{number}.json")
        made[-1].write_text(json.dumps(data))
    return made


STAGES: dict[str, Callable[[Bench], None]] = {
    stage.__name__: stage for stage in (resnet20, resnet56, best, zeta, tau, candidates, latency)
}


if __name__ == "__main__":
    weights, images, out, *stages = sys.argv[1:]
    Path(out).mkdir(parents=True, exist_ok=True)
    for name in stages or STAGES:
        STAGES[name](Bench(Path(weights), Path(images), Path(out)))
