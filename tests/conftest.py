"""Settings for all tests: no deadlines, since the first call of a kernel compiles it."""

from hypothesis import settings

settings.register_profile("tacit", deadline=None, print_blob=True)
settings.load_profile("tacit")
