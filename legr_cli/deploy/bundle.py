"""A folder with all that a board without ssh needs to measure networks."""

import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from legr_cli.deploy import core
from legr_cli.deploy.bench_models import BenchModels, as_onnx
from legr_cli.deploy.names import file_names
from legr_cli.files import staged
from legr_cli.settings import Bench
from legr_cli.shapes import shapes_text

README = """\
On the board, Python 3.8 or later needs two packages: python3 -m pip install numpy onnxruntime
Then run, in this folder: python3 legr_bench.py {arguments} > bench.json
Copy bench.json back; `legr bench bench.json` shows the results.

To run a network on the board, read how to prepare its input from the file itself:

    import json, onnxruntime
    session = onnxruntime.InferenceSession("{first}")
    metadata = json.loads(session.get_modelmeta().custom_metadata_map["legr"])
    metadata["input"], metadata.get("pictures"), metadata.get("mean"), metadata.get("std")
    metadata.get("classes")

Resize images as `pictures` says and scale pixel values to [0, 1]; then subtract `mean` and divide
by `std`, channel by channel.
"""


def write_bundle(
    models: BenchModels, settings: Bench, folder: Path, status: Callable[[str], None]
) -> list[Path]:
    """Write the networks, the measuring core and a README to a folder; return the files."""
    paths = [folder / name for name in file_names(list(models.short_names().values()))]
    networks = dict(zip(models.short_names(), paths, strict=True))
    script, readme = folder / "legr_bench.py", folder / "README.md"
    arguments = " ".join([*(path.name for path in paths), *_options(models, settings)])
    text = README.format(arguments=arguments, first=paths[0].name)
    with staged() as stage:
        stage.folder(folder)
        for model, data, _ in as_onnx(models, status):
            stage.file(networks[model]).write_bytes(data)
        shutil.copyfile(core.__file__, stage.file(script))
        stage.file(readme).write_text(text, encoding="utf-8")
    return [script, readme, *networks.values()]


def _options(models: BenchModels, settings: Bench) -> list[str]:
    """The options of `legr_bench.py` that differ from their defaults."""
    size = models.input_shape and shapes_text(models.input_shape).replace(" ", "")
    chosen, default = {**asdict(settings), "input": size}, asdict(Bench())
    return [f"--{key} {value}" for key, value in chosen.items() if value != default.get(key)]
