"""The controller's metrics about itself: scraping, buffering, steps, lag, leadership.

Seconds and counts, under `rhodeck_control_`. One instance a process, handed to whoever counts. Prevents:
a scraper that fails quietly, and a loop that is late without anybody knowing.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_PREFIX = "rhodeck_control_"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class ControlMetrics:
    """All metrics of one controller process on a registry of their own."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self.registry = registry

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(_PREFIX + name, text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(_PREFIX + name, text, labels, registry=registry)

        def histogram(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(_PREFIX + name, text, labels, registry=registry, buckets=_SECONDS)

        self.scrapes = counter("scrapes_total", "Pages asked for, by result: ok or a reason.", "result")
        self.scrape_seconds = histogram("scrape_seconds", "Time to get and read one page.")
        self.scrape_retries = counter("scrape_retries_total", "Pages asked for twice after a reset.")
        self.gateway_scrapes = counter("gateway_scrapes_total", "Gateway pages by result.", "result")
        self.rounds = counter("rounds_total", "Rounds of metrics reading finished.")
        self.round_seconds = histogram(
            "round_seconds", "Time from the first request of a round to its end."
        )
        self.round_lag_seconds = gauge("round_lag_seconds", "How late the newest round started.")
        self.rounds_skipped = counter("rounds_skipped_total", "Rounds not run because the loop was late.")
        self.rounds_buffered = gauge("rounds_buffered", "Rounds that wait for Postgres.")
        self.buffer_bytes = gauge("buffer_bytes", "Bytes of rounds that wait for Postgres.")
        self.rounds_stored = counter("rounds_stored_total", "Rounds written to Postgres.")
        self.rounds_dropped = counter(
            "rounds_dropped_total", "Rounds lost: buffer full, refused by Postgres, or failed.", "why"
        )
        self.nodes = gauge("nodes", "Nodes by the age of their last sample.", "freshness")
        self.tick_lag_seconds = gauge("tick_lag_seconds", "How late the newest tick started.")
        self.loop_lag_seconds = histogram("loop_lag_seconds", "How late the event loop woke a timer.")
        self.step_seconds = histogram("step_seconds", "Duration of one run of a step.", "step")
        self.step_failures = counter("step_failures_total", "Runs of a step that failed.", "step")
        self.step_success_at = gauge(
            "step_success_timestamp_seconds", "When a step last succeeded, Unix seconds.", "step"
        )
        self.is_leader = gauge("is_leader", "1 while this process leads, 0 while it stands by.")
        self.misplaced_rows = gauge(
            "misplaced_rows", "Rows in a default partition: no day partition was there.", "table"
        )
        self.partitions_held = gauge(
            "partitions_held", "Partitions older than they are kept for that wait to be rolled up."
        )
        self.rollups_waiting = gauge(
            "rollups_waiting", "Minutes and hours whose rollup is due and not made yet.", "level"
        )
        self.alerts_open = gauge("alerts_open", "Alerts that are not resolved.")
        self.notices = gauge(
            "notices", "Notices not delivered to a webhook: pending or dead (given up).", "state"
        )
        self.deliveries = counter(
            "deliveries_total", "Calls to webhooks, by what became of them.", "result"
        )

        self.exports = gauge(
            "exports", "Scheduled files not taken yet: pending, and failing of them.", "state"
        )

    def page(self) -> bytes:
        """Return the page in Prometheus text format."""
        return generate_latest(self.registry)
