"""A matplotlib figure that a notebook shows without pyplot."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from matplotlib.figure import Figure


class NotebookFigure(Figure):
    """A figure with a picture of its own for notebooks, sharp on screens with many dots."""

    def _repr_png_(self) -> tuple[bytes, dict[str, Any]]:
        buffer = BytesIO()
        self.savefig(buffer, format="png", dpi=144, metadata={"Software": None})
        width, height = (round(72 * inches) for inches in self.get_size_inches())
        return buffer.getvalue(), {"width": width, "height": height}
