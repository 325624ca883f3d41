"""The notebook runs top to bottom, and is kept without outputs."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def texts(notebook: nbformat.NotebookNode) -> dict[str, str]:
    """What each code cell printed, by the cell's source."""
    return {
        cell.source: "".join(out.text for out in cell.outputs if out.output_type == "stream" and out.name == "stdout")
        for cell in notebook.cells
        if cell.cell_type == "code"
    }


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.name)
def test_kept_without_outputs(path: Path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert all(not cell.outputs and cell.execution_count is None for cell in code)


@pytest.mark.slow
def test_quickstart(smollm2: str):
    notebook = nbformat.read(NOTEBOOKS / "quickstart.ipynb", as_version=4)
    assert smollm2 in notebook.cells[1].source
    NotebookClient(notebook, timeout=540, kernel_name="python3").execute()
    printed = "".join(texts(notebook).values())
    assert "Paris" in printed
    assert printed.count("same beside others: True") == 3
    assert "4 requests" in printed
    assert "decode + 125 prefill tokens" in printed         # chunks fill what three answers leave of 128
    match = re.search(r"(\d+) of (\d+) prompt tokens were in the cache", printed)
    assert match is not None
    cached, length = match.groups()
    assert int(length) - 32 < int(cached) < int(length)
    assert "KV pool" in printed
    pictures = [out for cell in notebook.cells for out in cell.get("outputs", ()) if "image/png" in out.get("data", {})]
    assert len(pictures) == 1
