"""Apache Flink as the engine: what it needs, how a job is started, and the job itself."""

import builtins
import sys

# In its workers PyFlink puts a `print` of its own among the builtins, without leaving it where it
# says that it is defined; Numba looks there when it is imported.
_home = sys.modules.get(builtins.print.__module__)
if _home is not None and not hasattr(_home, "print"):
    _home.print = builtins.print  # type: ignore[attr-defined]
