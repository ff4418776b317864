"""Execute the notebooks of the documentation: `python -m tests.notebooks [NAME …]`.

Needs nbclient and ipykernel (extra `docs`). Stores the outputs of the cells, without times of
execution, and without the plain text of an object that shows itself as a page.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"


def code_cells(file: Path) -> list[dict[str, Any]]:
    """The code cells of a notebook; `source` is one text."""
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    return [{**c, "source": "".join(c["source"])} for c in cells if c["cell_type"] == "code"]


def printed(cell: dict[str, Any]) -> str:
    """What a cell wrote to standard output."""
    return "".join("".join(o["text"]) for o in cell["outputs"] if o.get("name") == "stdout")


def execute(file: Path) -> None:
    """Run all cells in an empty folder and store their outputs in the notebook."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(file, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        NotebookClient(notebook, resources=resources, coalesce_streams=True).execute()
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", []):
            if "text/html" in output.get("data", {}):
                output["data"].pop("text/plain", None)
    nbformat.write(notebook, file)


if __name__ == "__main__":
    for file in sorted(FOLDER.glob("*.ipynb")):
        if len(sys.argv) == 1 or file.stem in sys.argv[1:]:
            print(file.name, flush=True)
            execute(file)
