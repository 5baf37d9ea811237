"""Metrics of a run for Prometheus. None of them depends on a private event.

Anyone who can reach the address can read them, so they contain only `PublicStatus`. They leave out
the number of tuples, their rate and lag, late and refused tuples (which tuples arrived is private),
the memory of the process and the seconds of a commit (both grow with the events in open windows),
and the number of releases (it depends on batching). The status line shows the first of these to the
operator; use the machine's own monitoring for the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tacit.errors import MissingExtraError, TacitError
from tacit.options import option
from tacit.pipeline.status import PublicStatus

if TYPE_CHECKING:
    from threading import Thread
    from wsgiref.simple_server import WSGIServer

    from prometheus_client.core import Metric

LOCAL: Final = "127.0.0.1"
NANO: Final = 1_000_000_000
_STOP_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class MetricsAddress:
    """The address at which metrics can be scraped."""

    port: int
    host: str = LOCAL

    @classmethod
    def parse(cls, text: str) -> MetricsAddress:
        """Parse `[HOST:]PORT`; write an IPv6 address in brackets.

        >>> MetricsAddress.parse("9464")
        MetricsAddress(port=9464, host='127.0.0.1')
        >>> MetricsAddress.parse("[::1]:9464").host
        '::1'
        """
        host, colon, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not (port.isascii() and port.isdigit()) or int(port) > 65535 or (colon and not host):
            raise ValueError(f"expected [HOST:]PORT, such as 9464 or 0.0.0.0:9464; got {text!r}")
        return cls(int(port), host or LOCAL)

    def __str__(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}/metrics"


class Figures:
    """The metrics of a run, computed for each scrape; a collector for prometheus-client.

    Two of them come from this machine's clock: the start of the run, which the operator chose, and
    the last release, rounded to windows, which consumers see when their answers arrive.
    """

    def __init__(self, public: PublicStatus, started: float) -> None:
        self._public = public
        self._started = started

    def collect(self) -> Iterable[Metric]:
        """Yield all metrics."""
        public = self._public
        yield _gauge(
            "start_timestamp_seconds", "When the run was started or resumed.", self._started
        )
        yield _gauge("subjects", "Subjects that have answers.", public.subjects)
        yield _counter("windows_released", "Windows released since then.", public.windows)
        yield _gauge(
            "released_until_timestamp_seconds",
            "Event time: the end of the last window that was released.",
            _seconds(public.until),
        )
        yield _gauge(
            "next_close_timestamp_seconds",
            "Event time at which the next window closes.",
            _seconds(public.next_close),
        )
        yield _gauge(
            "last_release_timestamp_seconds",
            "When the last release was made, rounded down to whole windows.",
            public.released_at,
        )
        yield _collect_charges(public)
        yield _gauge(
            "subjects_exhausted",
            "Subjects that did not pay in the last released window: limit reached, or saved.",
            public.exhausted,
        )
        yield _gauge(
            "drift_ratio",
            "The share of recent changes that history does not predict, from 0 to 1.",
            public.drift,
        )
        yield _gauge(
            "releases_undelivered",
            "Releases that not every sink has yet.",
            public.undelivered,
        )
        yield _counter("delivery_retries", "Deliveries that were retried.", public.retries)
        yield _counter("reloads", "New specifications that were accepted.", public.reloads)
        yield _counter(
            "reloads_refused",
            "New specifications that were refused.",
            public.reloads_refused,
        )


def _collect_charges(public: PublicStatus) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    family = CounterMetricFamily(
        "tacit_charged_epsilon",
        "Epsilon charged since then, summed over subjects and windows, by private pattern.",
        labels=["private"],
    )
    for private, amount in sorted(dict(public.charged).items()):
        family.add_metric([private], amount / NANO)
    return family


def _counter(name: str, help_: str, value: float) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    return CounterMetricFamily(f"tacit_{name}", help_, value=value)


def _gauge(name: str, help_: str, value: float | None) -> Metric:
    """Create a gauge; it has no sample if there is no value yet."""
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(f"tacit_{name}", help_, value=value)


def _seconds(microseconds: int | None) -> float | None:
    return None if microseconds is None else microseconds / 1_000_000


def require_metrics() -> None:
    """Raise an error if the extra for metrics is not installed."""
    try:
        import prometheus_client  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            f"{option('metrics')} needs the extra tacit[metrics]: pip install 'tacit[metrics]'"
        ) from error


class Metrics:
    """Serves a run's metrics until it is closed."""

    def __init__(self, address: MetricsAddress, public: PublicStatus, started: float) -> None:
        require_metrics()
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry()  # not the default one: it includes the memory of the process
        registry.register(Figures(public, started))
        try:
            served = start_http_server(address.port, address.host, registry)
        except (OSError, OverflowError) as error:
            raise TacitError(
                f"metrics cannot be served at {address}: {error.__class__.__name__}; is the port in"
                f" use? Choose another with {option('metrics', '[HOST:]PORT')}"
            ) from error
        self._server: WSGIServer = served[0]
        self._thread: Thread = served[1]
        self.address = MetricsAddress(int(self._server.server_port), address.host)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_STOP_SECONDS)

    def __enter__(self) -> Metrics:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
