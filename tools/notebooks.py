"""Execute the notebooks of docs/notebooks and store their outputs in them.

Run `make notebooks`, or `python tools/notebooks.py NAME...`. They run in an empty folder. Messages
on stderr, such as the progress of a training, are not stored.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "notebooks"
PARAMETERS = "parameters"  # the tag of the cell with the sizes
SECONDS = 1800  # of one cell


def main(names: list[str]) -> None:
    files = [FOLDER / f"{name}.ipynb" for name in names] or sorted(FOLDER.glob("*.ipynb"))
    for file in files:
        with TemporaryDirectory() as folder:
            book = executed(file, Path(folder))
        file.write_text(import_module("nbformat").writes(book) + "\n")
        print(file.relative_to(ROOT), f"{file.stat().st_size / 1000:.0f} kB")


def executed(file: Path, folder: Path, sizes: str | None = None) -> Any:
    """Return a notebook with its outputs, executed in `folder`. `sizes` replaces the cell with the
    tag `parameters`. Raises CellExecutionError if a cell raises."""
    book: Any = import_module("nbformat").read(file, 4)
    if sizes is not None:
        (cell,) = (c for c in book.cells if PARAMETERS in c.metadata.get("tags", ()))
        cell.source = sizes
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": path}
    client = import_module("nbclient").NotebookClient(
        book, timeout=SECONDS, kernel_name="python3", record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )  # fmt: skip
    client.execute(env=environment)
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
    book.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python", "pygments_lexer": "ipython3"},
    }
    return book


if __name__ == "__main__":
    main(sys.argv[1:])
