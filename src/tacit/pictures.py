"""Write figures to files: SVG, PNG or PDF, the same bytes for the same figure."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Final

from tacit.errors import PlanError, SinkError

if TYPE_CHECKING:
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
    """Return matplotlib's class of figures; raise PlanError if it is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlanError(
            "figures need matplotlib, which is not installed: pip install 'tacit[plot]'"
        ) from error
    return Figure


def save_picture(draw: Callable[[], Figure], path: str | PathLike[str]) -> None:
    """Draw a figure and write it to a file; its suffix is the format."""
    check_picture(path)
    import matplotlib as mpl

    suffix = next(one for one in SUFFIXES if fspath(path).lower().endswith(one))
    with mpl.rc_context(_STYLE):
        try:
            draw().savefig(path, metadata=_METADATA[suffix], dpi=150)
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise SinkError(f"{path} cannot be written: {why}; choose another place") from error
