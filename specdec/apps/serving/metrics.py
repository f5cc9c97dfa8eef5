"""Metrics for Prometheus: requests, the queue, the batch, tokens, accepted lengths and latencies.

A metric with the same meaning as one of vLLM has the same name, so dashboards and autoscalers for vLLM can use it; the
names of the others begin with ``specdec_``. Each has the label ``model_name``.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from specdec.apps.serving.errors import ApiError
from specdec.apps.serving.usage import depth_of
from specdec.errors import RequestError
from specdec.record import Outcome, StepRecord
from specdec.runtime.open_batch import OpenBatch

_SECONDS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_LONG = (*_SECONDS, 120.0, 300.0, 600.0)
_LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)
_MOST_POSITIONS = 16  # with labels of their own
_REASONS = {"cancelled": "abort", "time": "length"}  # vLLM's names of finish reasons


@dataclass(frozen=True, slots=True)
class _Labelled(Collector):
    """All metrics of a registry, with an additional label."""

    registry: CollectorRegistry
    model_name: str

    def collect(self) -> Iterator[Metric]:
        for metric in self.registry.collect():
            labelled = [each._replace(labels={"model_name": self.model_name, **each.labels}) for each in metric.samples]
            metric.samples = labelled
            yield metric


class Metrics:
    """The metrics of one server, in a registry of their own; ``model_name`` is the name that requests use."""

    def __init__(self, model_name: str) -> None:
        own = self._registry = CollectorRegistry()
        self._labelled: Any = _Labelled(own, model_name)
        ProcessCollector(registry=own)
        self.build = Gauge("specdec_build_info", "1; its labels say what runs.", ["version", "numerics"], registry=own)
        self.requests = Counter("specdec_requests", "Requests answered.", ["path", "status"], registry=own)
        self.connections = Gauge("specdec_connections", "Connections that are open.", registry=own)
        self.queue = Gauge("vllm:num_requests_waiting", "Texts waiting in the queue.", registry=own)
        self.batch = Gauge("vllm:num_requests_running", "Texts being decoded.", registry=own)
        self.finished = Counter("vllm:request_success", "Finished texts.", ["finished_reason"], registry=own)
        self.passes = Counter("specdec_passes", "Forward passes.", ["kind"], registry=own)
        self.pass_seconds = Histogram(
            "specdec_pass_seconds", "Time of a pass.", ["kind"], buckets=_SECONDS, registry=own
        )
        self.rows = Histogram("specdec_pass_texts", "Texts in a pass.", buckets=(1, 2, 4, 8, 16, 32, 64), registry=own)
        self.cache_bytes = Gauge("specdec_cache_bytes", "Keys and values of texts, in bytes.", registry=own)
        self.prefix_bytes = Gauge("specdec_prefix_bytes", "The prefix cache, in bytes.", registry=own)
        self._add_tokens(own)
        self._add_speculation(own)
        self._add_latencies(own)

    def _add_tokens(self, own: CollectorRegistry) -> None:
        self.prompt_tokens = Counter("vllm:prompt_tokens", "Tokens of prompts.", registry=own)
        self.prefix_queries = Counter(
            "vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", registry=own
        )
        self.prefix_hits = Counter("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.", registry=own)
        self.new_tokens = Counter("vllm:generation_tokens", "Tokens generated.", ["strategy"], registry=own)

    def _add_speculation(self, own: CollectorRegistry) -> None:
        labels = ["strategy", "position"]
        self.accepted_length = Histogram(
            "specdec_accepted_length",
            "Tokens emitted per step of a text.",
            ["strategy"],
            buckets=_LENGTHS,
            registry=own,
        )
        self.drafted = Counter(
            "specdec_drafted_per_pos", "Steps whose draft had a candidate at a position, from 0.", labels, registry=own
        )
        self.accepted = Counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos", "Accepted tokens by position.", labels, registry=own
        )
        self.drafts = Counter("vllm:spec_decode_num_drafts", "Drafts.", ["strategy"], registry=own)
        self.draft_tokens = Counter(
            "vllm:spec_decode_num_draft_tokens", "Candidates of drafts.", ["strategy"], registry=own
        )
        self.accepted_tokens = Counter(
            "vllm:spec_decode_num_accepted_tokens", "Accepted candidates.", ["strategy"], registry=own
        )

    def _add_latencies(self, own: CollectorRegistry) -> None:
        self.first_token = Histogram(
            "vllm:time_to_first_token_seconds", "From a request to its first token.", buckets=_LONG, registry=own
        )
        self.between_tokens = Histogram(
            "vllm:inter_token_latency_seconds", "Between the steps of an answer.", buckets=_SECONDS, registry=own
        )
        self.whole = Histogram(
            "vllm:e2e_request_latency_seconds", "From a request to its end.", ["path"], buckets=_LONG, registry=own
        )

    def observe(self, record: StepRecord, batch: OpenBatch) -> None:
        """Count a step; called by the engine."""
        self.passes.labels(record.kind).inc()
        self.pass_seconds.labels(record.kind).observe(record.total_seconds)
        self.queue.set(batch.num_waiting)
        self.batch.set(batch.num_active)
        self.cache_bytes.set(batch.cache_bytes)
        self.prefix_bytes.set(batch.prefix_cache.num_bytes)
        for outcome in record.outcomes:
            if outcome.finish_reason is not None:
                self._count_end(outcome)
        if record.kind == "chunk":
            return
        self.rows.observe(record.num_rows)
        for outcome in record.outcomes:
            if outcome.tokens:
                self._count_step(outcome)

    def _count_end(self, outcome: Outcome) -> None:
        if not isinstance(outcome.error, RequestError | ApiError):  # it was refused, which is no error of the server's
            reason = str(outcome.finish_reason)
            self.finished.labels(_REASONS.get(reason, reason)).inc()
        if outcome.request.new_tokens:
            self.prompt_tokens.inc(outcome.request.prompt_length)
            self.prefix_queries.inc(outcome.request.prompt_length)
            self.prefix_hits.inc(outcome.request.num_reused)

    def _count_step(self, outcome: Outcome) -> None:
        name, accepted = outcome.request.strategy_name, outcome.num_accepted_tokens
        self.new_tokens.labels(name).inc(len(outcome.tokens))
        self.accepted_length.labels(name).observe(len(outcome.tokens))
        for counter, depth in ((self.drafted, depth_of(outcome)), (self.accepted, accepted)):
            for position in range(min(depth, _MOST_POSITIONS)):
                counter.labels(name, str(position)).inc()
        if num_draft_tokens := outcome.num_draft_tokens:
            self.drafts.labels(name).inc()
            self.draft_tokens.labels(name).inc(num_draft_tokens)
            self.accepted_tokens.labels(name).inc(accepted)

    def page(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._labelled)


class RequestStopwatch:
    """The latencies of one answer."""

    def __init__(self, metrics: Metrics, arrived: float) -> None:
        self._metrics, self._arrived, self._last = metrics, arrived, 0.0
        self.seconds_to_first: float | None = None

    def tick(self) -> None:
        """Record that tokens were received."""
        now = time.perf_counter()
        if self.seconds_to_first is None:
            self.seconds_to_first = now - self._arrived
            self._metrics.first_token.observe(self.seconds_to_first)
        else:
            self._metrics.between_tokens.observe(now - self._last)
        self._last = now
