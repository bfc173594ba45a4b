"""CIFAR-10 with real pre-trained ResNets: what docs/results.md has of it, by legr commands alone.

    python benchmarks/cifar10/run.py weights cifar10 results [STAGE …] [--a57 DIR]

`weights` has resnet20-cifar10.th and resnet56-cifar10.th, `cifar10` the images. A stage that is
done is not done again, and one that was stopped goes on: searches, trainings and comparisons have
journals of their own. Stages without an arrow to each other can run side by side, with one thread
each (OMP_NUM_THREADS=1):

    resnet20-0, resnet20-1, resnet20-2     LeGR, uniform and norm at seven budgets, a seed each
    zeta20 … zeta80, zeta20-80             rankings learned at one share or two, used at all budgets
    tau, candidates                        what a fitness tells, what more candidates bring
    resnet56 → taught                      47 % and 20 %; and with the dense network as a teacher
    best → there                           ResNet-56 at 47 % as good as 20 epochs make it; and its
                                           ranking, learned there, tuned as briefly as the others
    taught, best → slower                  the same at lower rates
    resnet20-0, resnet56, best → latency   all methods on this CPU, and (a57, with --a57 DIR) in
    resnet20-0, resnet56, best → a57       instructions of an emulated Cortex-A57

Raw outputs stay in `results`; weights are not committed.
"""

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

BUDGETS = "0.2:0.8:0.1"
EXACT = ("--align", 1)  # the paper's own cut, so that methods differ in nothing else
TUNE = ("--recipe", "quick", "--amp")
SEARCH = ("--sigma", 0.5, "--fitness", "finetune", "--val-images", 2000, "--steps")


class Bench:
    """Where things are, and how a command is run."""

    def __init__(self, weights: Path, images: Path, out: Path, a57: Path | None = None) -> None:
        self.weights, self.out, self.a57 = weights, out, a57
        self.data = ["--data", f"cifar10:{images}", "--normalize", "imagenet"]

    def dense(self, arch: str) -> list[str]:
        """A checkpoint and its architecture."""
        return [str(self.weights / f"{arch}-cifar10.th"), "--arch", arch]

    def folder(self, name: str) -> Path:
        """A folder of a stage."""
        (self.out / name).mkdir(parents=True, exist_ok=True)
        return self.out / name

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
            out.parent.mkdir(parents=True, exist_ok=True)
            resume_command = ["--resume"] if (out / "compare.jsonl").exists() else []
            self.legr(
                "compare", *self.dense(arch), *self.data, *words, *resume_command, "--out", out
            )

    def learn(self, out: Path, arch: str, *words: object) -> Path:
        """A ranking; beside it what came of it."""
        given = (*self.dense(arch), *self.data, *words, "--resume", "--out", out)
        self.legr("learn", *given, result=out.with_suffix(".learned.json"))
        return out

    def prune(
        self, arch: str, ranking: object, share: object, out: Path, align: object = 1
    ) -> Path:
        """A network, or a folder of them; without a ranking by plain norms."""
        if not out.exists():
            by = ("--ranking", ranking) if ranking else ()
            cut = (*by, "--flops", share, "--align", align, "--out", out)
            self.legr("prune", *self.dense(arch), *cut)
        return out

    def tune(self, net: Path, epochs: int, *words: object, name: str = "tuned") -> None:
        """Fine-tune a network; beside it what came of it."""
        out = net.with_name(f"{net.stem}-{name}.safetensors")
        args = (*TUNE, "--epochs", epochs, *words, "--resume", "--out", out)
        self.legr("finetune", net, *self.data, *args, result=out.with_suffix(".json"))


def resnet20(seed: int, bench: Bench) -> None:
    """LeGR, uniform and norm at seven budgets; the ranking is learned at 20 % and 40 %."""
    methods = ("--methods", "uniform,norm,legr", *EXACT, "--seed", seed)
    search = ("--search-flops", "0.2,0.4", *SEARCH, 40, "--candidates", 60)
    bench.compare(f"resnet20/seed{seed}", "resnet20", *methods, *search, *TUNE, "--epochs", 1)


def zeta(name: str, bench: Bench) -> None:
    """ResNet-20: a ranking learned at one share, or at two, used at all budgets."""
    shares = ",".join(f"0.{share}".rstrip("0") for share in name.split("-"))
    search = ("--search-flops", shares, *SEARCH, 25, "--candidates", 40)
    words = ("--methods", "legr", *EXACT, *search, *TUNE, "--epochs", 1)
    bench.compare(f"zeta/{name}", "resnet20", *words)


def tau(bench: Bench) -> None:
    """ResNet-20 at 30 %: 14 candidates by every fitness, and after an epoch."""
    folder = bench.folder("tau")
    pool = ("--candidates", 14, "--population", 14, "--sample", 14, "--mutate", 0.3)
    pool = (*pool, "--start", "level", "--flops", 0.3, *EXACT)
    kinds: dict[str, tuple] = {"bn": ("--fitness", "bn"), "0": ("--fitness", "none")}
    kinds |= {str(n): ("--fitness", "finetune", "--steps", n) for n in (10, 50, 200)}
    for name, words in kinds.items():
        bench.learn(folder / f"tau-{name}.json", "resnet20", *pool, *words)
    _tuned(bench, _candidates(folder / "tau-bn.json", range(14), folder), 0.3)


def candidates(bench: Bench) -> None:
    """ResNet-20 at 40 %: the best of the first 50, 100, 200 and 400 candidates."""
    folder = bench.folder("candidates")
    search = ("--flops", 0.4, "--fitness", "bn", "--val-images", 2000, *EXACT)
    out = bench.learn(folder / "search.json", "resnet20", *search)
    lines = _history(out)
    firsts = (lines[:count] for count in (2, 50, 100, 200, 400))
    bests = [max(some, key=lambda line: line["accuracy"])["candidate"] for some in firsts]
    _tuned(bench, _candidates(out, dict.fromkeys(bests), folder), 0.4)


def resnet56(bench: Bench) -> None:
    """47 % and 20 % with a ranking learned at 20 % by BatchNorm statistics."""
    methods = ("--methods", "uniform,norm,legr", "--flops", "0.2,0.47", *EXACT)
    search = ("--fitness", "bn", "--candidates", 400)
    bench.compare("resnet56", "resnet56", *methods, *search, *TUNE, "--epochs", 2)


def taught(bench: Bench) -> None:
    """The 47 % network of that ranking, tuned as long, with the dense network as its teacher."""
    net = bench.folder("taught") / "resnet56-47.safetensors"
    bench.prune("resnet56", bench.out / "resnet56/rankings/legr-seed0.json", 0.47, net)
    bench.tune(net, 2, "--teacher", bench.dense("resnet56")[0])


def best(bench: Bench) -> None:
    """ResNet-56 at 47 % as good as 20 epochs make it: learned there, in blocks of 4, taught."""
    folder, align = bench.folder("best"), 4
    search = ("--flops", 0.47, "--fitness", "bn", "--candidates", 160, "--val-images", 2000)
    ranking = bench.learn(folder / "ranking.json", "resnet56", *search, "--align", align)
    net = bench.prune("resnet56", ranking, 0.47, folder / "best.safetensors", align)
    bench.tune(net, 20, "--teacher", bench.dense("resnet56")[0], "--all-images")


def slower(bench: Bench) -> None:
    """The two that are taught, at lower rates."""
    taught = ("--teacher", bench.dense("resnet56")[0], "--lr")
    brief, long = bench.out / "taught/resnet56-47.safetensors", bench.out / "best/best.safetensors"
    bench.tune(brief, 2, *taught, 0.015, name="slower")
    bench.tune(long, 20, *taught, 0.02, "--all-images", name="slower")


def there(bench: Bench) -> None:
    """The 47 % network of the ranking that was learned there, tuned as briefly as the others."""
    net = bench.folder("there") / "resnet56-47.safetensors"
    bench.tune(bench.prune("resnet56", bench.out / "best/ranking.json", 0.47, net), 2)


CUTS = {  # budgets of the networks that are timed, and where LeGR's ranking is
    "resnet20": (BUDGETS, "resnet20/seed0/rankings/legr-seed0.json"),
    "resnet56": ("0.2,0.47", "resnet56/rankings/legr-seed0.json"),
}


def _cuts(bench: Bench, arch: str, *aligns: str) -> list[Path]:
    """The networks of every method and budget, aligned and not."""
    shares, learned = CUTS[arch]
    rankings = {"legr": bench.out / learned, "norm": None, "uniform": "uniform"}
    nets = []
    for method, ranking in rankings.items():
        for align in aligns:
            into = bench.folder(f"latency/{arch}") / f"{method}-align-{align}"
            nets += sorted(bench.prune(arch, ranking, shares, into, align).glob("*.safetensors"))
    if arch == "resnet56":  # the best one has a ranking and blocks of its own
        net = bench.folder("latency/resnet56/best-align-4") / "resnet56-flops47.safetensors"
        nets.append(bench.prune(arch, bench.out / "best/ranking.json", 0.47, net, 4))
    return nets


def latency(bench: Bench) -> None:
    """All of them on this CPU."""
    for arch in CUTS:
        result = bench.folder("latency") / f"{arch}-bench.json"
        against = ("--against", bench.dense(arch)[0], "--seconds", 2)
        if not result.exists():
            bench.legr("bench", *_cuts(bench, arch, "auto", "1"), *against, "--out", result)


def a57(bench: Bench) -> None:
    """The same in instructions of an emulated Cortex-A57, with the blocks that an ARM likes."""
    if bench.a57 is None:
        sys.exit("a57 needs an emulated core: scripts/a57 DIR, then --a57 DIR")
    counter = Path(__file__).parents[1] / "a57.py"
    for arch in CUTS:
        result = bench.folder("latency") / f"{arch}-a57.json"
        if result.exists():
            continue
        nets = [bench.dense(arch)[0], *map(str, _cuts(bench, arch, "arm", "1"))]
        line = [sys.executable, str(counter), str(bench.a57), *nets]
        done = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True)
        result.write_text(done.stdout)


def _tuned(bench: Bench, rankings: Iterable[Path], share: float) -> None:
    """ResNet-20, cut by each of these rankings and trained for an epoch."""
    for ranking in rankings:
        net = ranking.with_name(f"{ranking.stem}-seed0.safetensors")
        bench.tune(bench.prune("resnet20", ranking, share, net), 1, "--seed", 0)


def _history(ranking: Path) -> list[dict]:
    """The candidates of a search, in order."""
    lines = ranking.with_suffix(".history.jsonl").read_text().splitlines()[1:]
    return sorted(map(json.loads, lines), key=lambda line: line["candidate"])


def _candidates(ranking: Path, numbers: Iterable[int], folder: Path) -> list[Path]:
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
    **{f"resnet20-{seed}": partial(resnet20, seed) for seed in range(3)},
    **{f"zeta{name}": partial(zeta, name) for name in ("20", "40", "60", "80", "20-80")},
    **{
        stage.__name__: stage
        for stage in (tau, candidates, resnet56, taught, best, slower, there, latency, a57)
    },
}


if __name__ == "__main__":
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    for name in ("weights", "images", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("stages", nargs="*", choices=[*STAGES, []])
    parser.add_argument("--a57", type=Path)
    given = parser.parse_args()
    bench = Bench(given.weights, given.images, given.out, given.a57)
    for name in given.stages or (name for name in STAGES if given.a57 or name != "a57"):
        STAGES[name](bench)
