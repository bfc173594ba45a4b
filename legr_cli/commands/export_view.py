"""Output of `legr export`: the files, or JSON."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from legr_cli.commands import output
from legr_cli.version import __version__

if TYPE_CHECKING:
    from legr_cli.deploy.export import Exported


def show_exported(written: "Sequence[Exported]", as_json: bool) -> None:
    """Print the files to stdout and a note to stderr, or everything as JSON."""
    if as_json:
        rows = [
            {
                "file": str(exported.file),
                "bytes": exported.bytes,
                "difference": exported.difference,
                "opset": exported.opset,
            }
            for exported in written
        ]
        output.print_json({"legr": __version__, "exported": rows})
        return
    output.print_notes(verification_note(written))
    for exported in written:
        output.print_result(exported.file)


def verification_note(written: "Sequence[Exported]") -> str:
    """How close ONNX Runtime comes to torch, over all exported networks."""
    compared = [e.difference for e in written if e.difference is not None]
    if not compared:
        return (
            f"ONNX opset {written[0].opset}: the network draws random numbers; its ONNX output was "
            "not compared"
        )
    worst = max(compared)
    random = "; networks that draw random numbers were not compared"
    return (
        f"ONNX opset {written[0].opset}, verified with ONNX Runtime: outputs differ from torch by "
        f"at most {worst:.0e} (relative){random if len(compared) < len(written) else ''}"
    )
