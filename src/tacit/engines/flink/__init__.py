"""The engine on Apache Flink: its requirements, the start of a job, and the job itself."""

import builtins
import gc
import sys

# In its workers PyFlink replaces the builtin `print` by its own, which its module does not contain.
# Numba looks it up there on import.
_home = sys.modules.get(builtins.print.__module__)
if _home is not None and not hasattr(_home, "print"):
    _home.print = builtins.print  # type: ignore[attr-defined]
    # A worker has loaded PyFlink and Apache Beam. Python would search all of their objects for
    # garbage several times while it imports the rest.
    gc.freeze()
