"""Draw figures, and write them to files: SVG, PNG or PDF, the same bytes for the same figure.

Results with a picture have `plot(path=None)`: it returns a matplotlib figure, which a notebook
shows, and writes it if there is a path.
"""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Final, Literal

from tacit.errors import MissingExtraError, SinkError, translate_write_errors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES: Final = (".svg", ".png", ".pdf")
INK: Final = "#333333"
_STYLE: Final[Any] = {"svg.fonttype": "none", "svg.hashsalt": "tacit", "pdf.fonttype": 42}
"""Text stays text in SVG and PDF."""
_METADATA: Final[dict[str, dict[str, Any]]] = {
    ".svg": {"Date": None, "Creator": None},
    ".png": {"Software": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def check_picture(path: str | PathLike[str]) -> None:
    """Refuse a figure that cannot be drawn, before anything is computed for it."""
    if not fspath(path).lower().endswith(SUFFIXES):
        *first, last = SUFFIXES
        raise SinkError(f"{path}: expected a name ending in {', '.join(first)} or {last}")
    load_figure()


def load_figure() -> type[Figure]:
    """Return the class of figures; raise an error if matplotlib is not installed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            "figures need matplotlib, which is not installed: pip install 'tacit[plot]'"
        ) from error
    from tacit.notebook_figure import NotebookFigure

    return NotebookFigure


def make_picture(draw: Callable[[], Figure], path: str | PathLike[str] | None = None) -> Figure:
    """Draw a figure; with a path, write it to this file too, whose suffix is the format."""
    if path is None:
        load_figure()
        return draw()
    check_picture(path)
    import matplotlib as mpl

    suffix = next(one for one in SUFFIXES if fspath(path).lower().endswith(one))
    with mpl.rc_context(_STYLE), translate_write_errors(path):
        figure = draw()
        figure.savefig(path, metadata=_METADATA[suffix], dpi=150)
    return figure


def frame_axes(axes: Axes, grid: Literal["x", "y", "both"] = "y") -> None:
    """Leave only what helps to read: faint lines, no box."""
    axes.grid(axis=grid, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
