"""Metrics for Prometheus: requests, the queue, the batch, tokens, accepted lengths and latencies."""

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from specdec.decoding.record import StepRecord
from specdec.open_batch import OpenBatch
from specdec.serving.figures import depth_of

_SECONDS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_LONG = (*_SECONDS, 120.0, 300.0, 600.0)
_LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)
_MOST_POSITIONS = 16  # with labels of their own


class Metrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        own = self._registry = CollectorRegistry()
        self.requests = Counter("specdec_requests", "Requests answered.", ["path", "status"], registry=own)
        self.queue = Gauge("specdec_queue_texts", "Texts that wait for their turn.", registry=own)
        self.batch = Gauge("specdec_batch_texts", "Texts that are being decoded.", registry=own)
        self.prompt_tokens = Counter("specdec_prompt_tokens", "Tokens of prompts that were read.", registry=own)
        self.copied = Counter("specdec_prompt_tokens_copied", "Tokens of prompts that were kept.", registry=own)
        self.new_tokens = Counter("specdec_new_tokens", "Tokens written.", ["strategy"], registry=own)
        self.passes = Counter("specdec_passes", "Forward passes.", ["kind"], registry=own)
        self.pass_seconds = Histogram(
            "specdec_pass_seconds", "Time of a pass.", ["kind"], buckets=_SECONDS, registry=own
        )
        self.rows = Histogram("specdec_pass_texts", "Texts in a pass.", buckets=(1, 2, 4, 8, 16, 32, 64), registry=own)
        self.accepted_length = Histogram(
            "specdec_accepted_length", "Tokens of a text's step.", ["strategy"], buckets=_LENGTHS, registry=own
        )
        self.drafted = Counter("specdec_drafted", "Steps that drafted so deep.", ["strategy", "position"], registry=own)
        self.accepted = Counter(
            "specdec_accepted", "Steps that accepted so deep.", ["strategy", "position"], registry=own
        )
        self.first_token = Histogram("specdec_first_token_seconds", "To the first token.", buckets=_LONG, registry=own)
        self.between_tokens = Histogram(
            "specdec_between_tokens_seconds", "Between parts of an answer.", buckets=_SECONDS, registry=own
        )
        self.whole = Histogram("specdec_request_seconds", "Of a whole answer.", ["path"], buckets=_LONG, registry=own)
        self.cache_bytes = Gauge("specdec_cache_bytes", "Held for keys and values of texts.", registry=own)
        self.prefix_bytes = Gauge("specdec_prefix_bytes", "Held for prefixes.", registry=own)

    def observe(self, record: StepRecord, batch: OpenBatch) -> None:
        """Take a step; called by the engine."""
        self.passes.labels(record.kind).inc()
        self.pass_seconds.labels(record.kind).observe(record.total_seconds)
        self.queue.set(batch.num_waiting)
        self.batch.set(batch.num_active)
        self.cache_bytes.set(batch.cache_bytes)
        self.prefix_bytes.set(batch.prefixes.num_bytes)
        for outcome in record.outcomes:
            if outcome.finish_reason is not None and outcome.request.stats.steps:
                self._count_prompt(outcome.request.prompt_length, outcome.request.stats.num_reused)
        if record.kind == "chunk":
            return
        self.rows.observe(record.num_rows)
        for outcome in record.outcomes:
            if not outcome.tokens:
                continue
            name, accepted = outcome.request.plan.strategy.name, len(outcome.path) - 1
            self.new_tokens.labels(name).inc(len(outcome.tokens))
            self.accepted_length.labels(name).observe(len(outcome.tokens))
            for counter, depth in ((self.drafted, depth_of(outcome)), (self.accepted, accepted)):
                for position in range(1, min(depth, _MOST_POSITIONS) + 1):
                    counter.labels(name, str(position)).inc()

    def _count_prompt(self, num_tokens: int, num_copied: int) -> None:
        self.prompt_tokens.inc(num_tokens - num_copied)
        self.copied.inc(num_copied)

    def page(self) -> bytes:
        """All metrics, in Prometheus's text format."""
        return generate_latest(self._registry)


class Stopwatch:
    """The latencies of one answer."""

    def __init__(self, metrics: Metrics, arrived: float) -> None:
        self._metrics, self._arrived, self._last = metrics, arrived, 0.0
        self.seconds_to_first: float | None = None

    def tick(self) -> None:
        """Note that tokens have come."""
        now = time.perf_counter()
        if self.seconds_to_first is None:
            self.seconds_to_first = now - self._arrived
            self._metrics.first_token.observe(self.seconds_to_first)
        else:
            self._metrics.between_tokens.observe(now - self._last)
        self._last = now
