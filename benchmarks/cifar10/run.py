"""CIFAR-10 with public pre-trained ResNets: the experiments behind docs/results.md and docs/lab/.

    python benchmarks/cifar10/run.py weights cifar10 results [STAGE …] [--a57 DIR]

`weights` contains resnet20-cifar10.th and resnet56-cifar10.th, `cifar10` the images. Nothing but
legr commands is run (and a57.py for the stage a57). Finished stages are skipped and interrupted
ones resume, because searches, trainings and comparisons have journals. Stages that do not depend on
each other can run side by side, with one thread each (OMP_NUM_THREADS=1):

    seven20-0 … seven20-2, seven56-0, -1   LeGR with the defaults of `legr learn`, norm, uniform,
                                           Taylor and AMC, all repaired and taught alike
    defaults56                             ResNet-56 repaired: LeGR with the defaults, norm, uniform
    long                                   ResNet-56 at 47 %, repaired, 20 epochs with a teacher
    resnet20-0, resnet20-1, resnet20-2     without repair: LeGR, uniform and norm at seven budgets
    zeta20 … zeta80, zeta20-80             rankings learned at one budget or two, used at all
    tau, candidates                        what a fitness predicts; what more candidates gain
    resnet56 → taught                      47 % and 20 %; then with the dense network as teacher
    best → there                           ResNet-56 at 47 %, fine-tuned for 20 epochs; then the
                                           same ranking, fine-tuned for two, as in resnet56
    taught, best → slower                  the same with lower learning rates
    repaired20, repaired56                 cut and repaired, by norms and by a ranking learned with
                                           --fitness repair; then one epoch with the dense network
                                           as teacher
    resnet20-0, resnet56, best → latency   latency of all methods on this CPU
    resnet20-0, resnet56, best → a57       instructions on an emulated Cortex-A57 (needs --a57 DIR)

Raw results are written to `results`; weights are not committed.
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
EXACT = ("--align", 1)  # no blocks, as in the paper
TUNE = ("--recipe", "quick", "--amp")
SEARCH = ("--sigma", 0.5, "--fitness", "finetune", "--val-images", 2000, "--steps")


class Experiment:
    """The folders of an experiment, and how to run legr commands in it."""

    def __init__(self, weights: Path, images: Path, out: Path, a57: Path | None = None) -> None:
        self.weights, self.out, self.a57 = weights, out, a57
        self.data = ["--data", f"cifar10:{images}", "--normalize", "imagenet"]

    def dense(self, arch: str) -> list[str]:
        """The arguments that name a dense checkpoint."""
        return [str(self.weights / f"{arch}-cifar10.th"), "--arch", arch]

    def folder(self, name: str) -> Path:
        """Create the folder of a stage."""
        (self.out / name).mkdir(parents=True, exist_ok=True)
        return self.out / name

    def legr(self, *arguments: object, result: Path | None = None) -> None:
        """Run a command and write its JSON to `result`; skip it if `result` exists."""
        if result is not None and result.exists():
            return
        command = ["legr", *map(str, arguments), *(["--json"] if result else [])]
        print(f"+ {shlex.join(command)}", flush=True)
        start = time.perf_counter()
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        print(f"  {time.perf_counter() - start:.0f} s", flush=True)
        if result is not None:
            result.write_text(done.stdout)

    def compare(self, name: str, arch: str, *arguments: object) -> None:
        """Run or resume a comparison, unless it is finished."""
        out = self.out / name
        if not (out / "compare.json").exists():
            out.parent.mkdir(parents=True, exist_ok=True)
            resume = ["--resume"] if (out / "compare.jsonl").exists() else []
            self.legr("compare", *self.dense(arch), *self.data, *arguments, *resume, "--out", out)

    def learn(self, out: Path, arch: str, *arguments: object) -> Path:
        """Learn a ranking; write the command's JSON next to it."""
        args = (*self.dense(arch), *self.data, *arguments, "--resume", "--out", out)
        self.legr("learn", *args, result=out.with_suffix(".learned.json"))
        return out

    def prune(
        self, arch: str, ranking: object, share: object, out: Path, align: object = 1
    ) -> Path:
        """Prune to a network or a folder of networks; without a ranking, by plain norms."""
        if not out.exists():
            by = ("--ranking", ranking) if ranking else ()
            args = (*by, "--flops", share, "--align", align, "--out", out)
            self.legr("prune", *self.dense(arch), *args)
        return out

    def tune(self, net: Path, epochs: int, *arguments: object, name: str = "tuned") -> None:
        """Fine-tune a network; write the command's JSON next to the result."""
        out = net.with_name(f"{net.stem}-{name}.safetensors")
        args = (*TUNE, "--epochs", epochs, *arguments, "--resume", "--out", out)
        self.legr("finetune", net, *self.data, *args, result=out.with_suffix(".json"))


def resnet20(seed: int, experiment: Experiment) -> None:
    """LeGR, uniform and norm at seven budgets; the ranking is learned at 20 % and 40 %."""
    methods = ("--methods", "uniform,norm,legr", *EXACT, "--seed", seed)
    search = ("--search-flops", "0.2,0.4", *SEARCH, 40, "--candidates", 60)
    experiment.compare(f"resnet20/seed{seed}", "resnet20", *methods, *search, *TUNE, "--epochs", 1)


def seven(arch: str, budgets: str, seed: int, experiment: Experiment) -> None:
    """LeGR with the defaults of `learn`, and other methods, all repaired and taught alike."""
    common = ("--flops", budgets, *EXACT, "--repair", 512, "--teacher", "--epochs", 1, "--amp")
    common = (*common, "--candidates", 100, "--seed", seed)
    others = ("--methods", "norm,uniform,taylor,amc", *common, "--fitness", "repair")
    rounds = ("--val-images", 500, "--round-units", 8, "--round-steps", 40)
    folder = f"seven/{arch}/seed{seed}"
    experiment.compare(f"{folder}/others", arch, *others, *rounds)
    experiment.compare(f"{folder}/legr", arch, "--methods", "legr", *common, "--batch-size", 64)


def defaults(arch: str, budgets: str, experiment: Experiment) -> None:
    """Repaired networks by a ranking learned with the defaults, by norms and uniformly."""
    folder, dense = experiment.folder(f"defaults/{arch}"), experiment.dense(arch)[0]
    ranking = experiment.learn(folder / "ranking.json", arch, *EXACT)
    for name, order in {"legr": ranking, "norm": None, "uniform": "uniform"}.items():
        result, new = folder / f"{name}.scores.json", folder / f"{name}-repaired"
        if result.exists():
            continue
        nets = sorted(experiment.prune(arch, order, budgets, folder / name).glob("*.safetensors"))
        if not new.exists():
            options = ("--dense", dense, *experiment.data, "--images", 512, "--out", new)
            experiment.legr("repair", *nets, *options)
        repaired = sorted(new.glob("*.safetensors"))
        experiment.legr("evaluate", *repaired, *experiment.data, result=result)


def long(experiment: Experiment) -> None:
    """ResNet-56 at 47 %: learned and repaired with the defaults, 20 epochs with a teacher."""
    folder, arch = experiment.folder("long"), "resnet56"
    ranking = experiment.learn(folder / "ranking.json", arch, *EXACT)
    net = experiment.prune(arch, ranking, 0.47, folder / "resnet56-47.safetensors")
    dense, repaired = experiment.dense(arch)[0], net.with_name("repaired.safetensors")
    if not repaired.exists():
        options = ("--dense", dense, *experiment.data, "--images", 512, "--out", repaired)
        experiment.legr("repair", net, *options)
    out = folder / "tuned.safetensors"
    tune = ("--teacher", dense, "--epochs", 20, "--lr", 0.02, "--amp", "--all-images", "--resume")
    tuned = (*experiment.data, *tune, "--out", out)
    experiment.legr("finetune", repaired, *tuned, result=out.with_suffix(".json"))


def zeta(name: str, experiment: Experiment) -> None:
    """ResNet-20: a ranking learned at one budget or two, used at all budgets."""
    shares = ",".join(f"0.{share}".rstrip("0") for share in name.split("-"))
    search = ("--search-flops", shares, *SEARCH, 25, "--candidates", 40)
    arguments = ("--methods", "legr", *EXACT, *search, *TUNE, "--epochs", 1)
    experiment.compare(f"zeta/{name}", "resnet20", *arguments)


def tau(experiment: Experiment) -> None:
    """ResNet-20 at 30 %: the fitness of 14 candidates, and their accuracy after one epoch."""
    folder = experiment.folder("tau")
    pool = ("--candidates", 14, "--population", 14, "--sample", 14, "--mutate", 0.3)
    pool = (*pool, "--start", "level", "--flops", 0.3, *EXACT)
    fitness: dict[str, tuple] = {"bn": ("--fitness", "bn"), "0": ("--fitness", "none")}
    fitness["repair"] = ("--fitness", "repair")
    fitness |= {str(n): ("--fitness", "finetune", "--steps", n) for n in (10, 50, 200)}
    for name, arguments in fitness.items():
        experiment.learn(folder / f"tau-{name}.json", "resnet20", *pool, *arguments)
    _tune_each(experiment, _candidates(folder / "tau-bn.json", range(14), folder), 0.3)


def candidates(experiment: Experiment) -> None:
    """ResNet-20 at 40 %: the best of the first 2, 50, 100, 200 and 400 candidates."""
    folder = experiment.folder("candidates")
    search = ("--flops", 0.4, "--fitness", "bn", "--val-images", 2000, *EXACT)
    out = experiment.learn(folder / "search.json", "resnet20", *search)
    lines = _history(out)
    prefixes = (lines[:count] for count in (2, 50, 100, 200, 400))
    bests = [max(first, key=lambda line: line["accuracy"])["candidate"] for first in prefixes]
    _tune_each(experiment, _candidates(out, dict.fromkeys(bests), folder), 0.4)


def resnet56(experiment: Experiment) -> None:
    """ResNet-56 at 47 % and 20 %, with a ranking learned at 20 % with --fitness bn."""
    methods = ("--methods", "uniform,norm,legr", "--flops", "0.2,0.47", *EXACT)
    search = ("--fitness", "bn", "--candidates", 400)
    experiment.compare("resnet56", "resnet56", *methods, *search, *TUNE, "--epochs", 2)


def taught(experiment: Experiment) -> None:
    """The 47 % network of `resnet56`, fine-tuned with the dense network as the teacher."""
    net = experiment.folder("taught") / "resnet56-47.safetensors"
    experiment.prune("resnet56", experiment.out / "resnet56/rankings/legr-seed0.json", 0.47, net)
    experiment.tune(net, 2, "--teacher", experiment.dense("resnet56")[0])


def best(experiment: Experiment) -> None:
    """ResNet-56 at 47 %: learned at 47 %, blocks of 4, 20 epochs with a teacher."""
    folder, align = experiment.folder("best"), 4
    search = ("--flops", 0.47, "--fitness", "bn", "--candidates", 160, "--val-images", 2000)
    ranking = experiment.learn(folder / "ranking.json", "resnet56", *search, "--align", align)
    net = experiment.prune("resnet56", ranking, 0.47, folder / "best.safetensors", align)
    experiment.tune(net, 20, "--teacher", experiment.dense("resnet56")[0], "--all-images")


def slower(experiment: Experiment) -> None:
    """`taught` and `best` with lower learning rates."""
    taught = ("--teacher", experiment.dense("resnet56")[0], "--lr")
    short, long = (
        experiment.out / "taught/resnet56-47.safetensors",
        experiment.out / "best/best.safetensors",
    )
    experiment.tune(short, 2, *taught, 0.015, name="slower")
    experiment.tune(long, 20, *taught, 0.02, "--all-images", name="slower")


def there(experiment: Experiment) -> None:
    """The 47 % network of the ranking of `best`, fine-tuned for two epochs like `resnet56`."""
    net = experiment.folder("there") / "resnet56-47.safetensors"
    experiment.tune(
        experiment.prune("resnet56", experiment.out / "best/ranking.json", 0.47, net), 2
    )


def repaired(
    arch: str, learned_at: str, budgets: str, tuned_at: int, experiment: Experiment
) -> None:
    """Cut and repaired networks on the test images, and one epoch from a repaired one."""
    folder, images = experiment.folder(f"repaired/{arch}"), ("--images", 512)
    search = ("--fitness", "repair", "--flops", learned_at, "--candidates", 120, *EXACT)
    search = (*search, "--population", 24, "--sample", 8, "--sigma-end", 0.2, "--val-images", 500)
    ranking = experiment.learn(folder / "ranking.json", arch, *search)
    teacher = experiment.dense(arch)[0]
    for name, order in {"norm": None, "legr": ranking}.items():
        cut, new = folder / name, folder / f"{name}-repaired"
        scores = {nets: folder / f"{nets.name}.scores.json" for nets in (cut, new)}
        tuned = folder / f"{name}-tuned{tuned_at}.json"
        if all(result.exists() for result in (*scores.values(), tuned)):
            continue
        nets = sorted(experiment.prune(arch, order, budgets, cut).glob("*.safetensors"))
        if not new.exists():
            options = ("--dense", teacher, *experiment.data, *images, "--out", new)
            experiment.legr("repair", *nets, *options)
        for made, result in scores.items():
            networks = sorted(made.glob("*.safetensors"))
            experiment.legr("evaluate", *networks, *experiment.data, result=result)
        tune = ("--teacher", teacher, "--epochs", 1, "--amp", "--resume")
        tune = (*experiment.data, *tune, "--out", tuned.with_suffix(".safetensors"))
        experiment.legr(
            "finetune", new / f"{arch}-flops{tuned_at}.safetensors", *tune, result=tuned
        )


MEASURED = {  # budgets of the networks to measure, and the learned ranking
    "resnet20": (BUDGETS, "resnet20/seed0/rankings/legr-seed0.json"),
    "resnet56": ("0.2,0.47", "resnet56/rankings/legr-seed0.json"),
}


def _networks(experiment: Experiment, arch: str, *aligns: str) -> list[Path]:
    """Prune with every method to every budget, with these alignments."""
    shares, learned = MEASURED[arch]
    rankings = {"legr": experiment.out / learned, "norm": None, "uniform": "uniform"}
    nets = []
    for method, ranking in rankings.items():
        for align in aligns:
            folder = experiment.folder(f"latency/{arch}") / f"{method}-align-{align}"
            nets += sorted(
                experiment.prune(arch, ranking, shares, folder, align).glob("*.safetensors")
            )
    if arch == "resnet56":  # `best` has its own ranking and block size
        net = experiment.folder("latency/resnet56/best-align-4") / "resnet56-flops47.safetensors"
        nets.append(experiment.prune(arch, experiment.out / "best/ranking.json", 0.47, net, 4))
    return nets


def latency(experiment: Experiment) -> None:
    """Measure the latency of all networks on this CPU."""
    for arch in MEASURED:
        result = experiment.folder("latency") / f"{arch}-bench.json"
        against = ("--against", experiment.dense(arch)[0], "--seconds", 2)
        if not result.exists():
            experiment.legr(
                "bench", *_networks(experiment, arch, "auto", "1"), *against, "--out", result
            )


def a57(experiment: Experiment) -> None:
    """Count instructions on an emulated Cortex-A57, with the alignment for ARM."""
    if experiment.a57 is None:
        sys.exit("the stage a57 needs an emulator: run scripts/a57 DIR, then pass --a57 DIR")
    counter = Path(__file__).parents[1] / "a57.py"
    for arch in MEASURED:
        result = experiment.folder("latency") / f"{arch}-a57.json"
        if result.exists():
            continue
        nets = [experiment.dense(arch)[0], *map(str, _networks(experiment, arch, "arm", "1"))]
        command = [sys.executable, str(counter), str(experiment.a57), *nets]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        result.write_text(done.stdout)


def _tune_each(experiment: Experiment, rankings: Iterable[Path], share: float) -> None:
    """Prune ResNet-20 with each of these rankings and fine-tune it for one epoch."""
    for ranking in rankings:
        net = ranking.with_name(f"{ranking.stem}-seed0.safetensors")
        experiment.tune(experiment.prune("resnet20", ranking, share, net), 1, "--seed", 0)


def _history(ranking: Path) -> list[dict]:
    """Read the candidates of a search, in order."""
    lines = ranking.with_suffix(".history.jsonl").read_text().splitlines()[1:]
    return sorted(map(json.loads, lines), key=lambda line: line["candidate"])


def _candidates(ranking: Path, numbers: Iterable[int], folder: Path) -> list[Path]:
    """Write candidates of a search as rankings of their own."""
    data, lines, files = json.loads(ranking.read_text()), _history(ranking), []
    for number in numbers:
        for row, alpha, kappa in zip(
            data["layers"], lines[number]["alpha"], lines[number]["kappa"], strict=True
        ):
            row["alpha"], row["kappa"] = alpha, kappa
        files.append(folder / f"candidate{number}.json")
        files[-1].write_text(json.dumps(data))
    return files


STAGES: dict[str, Callable[[Experiment], None]] = {
    **{f"resnet20-{seed}": partial(resnet20, seed) for seed in range(3)},
    "seven20-0": partial(seven, "resnet20", BUDGETS, 0),
    "defaults56": partial(defaults, "resnet56", "0.2,0.3,0.47,0.7"),
    "repaired20": partial(repaired, "resnet20", "0.3,0.5", "0.3,0.5", 30),
    "repaired56": partial(repaired, "resnet56", "0.2,0.47", "0.2,0.3,0.47", 47),
    **{f"zeta{name}": partial(zeta, name) for name in ("20", "40", "60", "80", "20-80")},
    **{
        stage.__name__: stage
        for stage in (tau, candidates, resnet56, taught, best, slower, there, latency, a57)
    },
}


NOT_RUN: dict[str, Callable[[Experiment], None]] = {  # there are no results of these yet
    **{f"seven20-{seed}": partial(seven, "resnet20", BUDGETS, seed) for seed in (1, 2)},
    **{
        f"seven56-{seed}": partial(seven, "resnet56", "0.2,0.3,0.47,0.7", seed) for seed in range(2)
    },
    "long": long,
}


if __name__ == "__main__":
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    for name in ("weights", "images", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("stages", nargs="*", choices=[*STAGES, *NOT_RUN, []])
    parser.add_argument("--a57", type=Path)
    args = parser.parse_args()
    experiment = Experiment(args.weights, args.images, args.out, args.a57)
    for name in args.stages or (name for name in STAGES if args.a57 or name != "a57"):
        {**STAGES, **NOT_RUN}[name](experiment)
