"""Figures as files: SVG and PNG, drawn with matplotlib."""

from __future__ import annotations

from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Final

from tacit.errors import PlanError, SinkError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES: Final = (".svg", ".png")


def check_picture(path: str | PathLike[str]) -> None:
    """Refuse a figure that cannot be drawn, before anything is computed for it."""
    if not fspath(path).lower().endswith(SUFFIXES):
        raise SinkError(f"{path}: expected a name ending in {' or '.join(SUFFIXES)}")
    import_figure()


def import_figure() -> Any:
    """Return matplotlib's class for figures; raise PlanError if it is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlanError(
            "figures need matplotlib, which is not installed: pip install 'tacit[plot]'"
        ) from error
    return Figure


def save_picture(figure: Figure, path: str | PathLike[str]) -> None:
    """Write a figure to an SVG or PNG file; the same figure gives the same file."""
    import matplotlib as mpl

    vector = fspath(path).lower().endswith(".svg")
    metadata = {"Date": None, "Creator": None} if vector else {"Software": None}
    # Text stays text in SVG.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "tacit"}):
        try:
            figure.savefig(path, metadata=metadata, dpi=150)
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise SinkError(f"{path} cannot be written: {why}; choose another place") from error
