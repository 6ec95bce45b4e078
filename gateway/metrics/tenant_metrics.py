"""Metrics of the tenants, the owners of API keys: requests, tokens and refusals. Their number is bounded."""

from prometheus_client import CollectorRegistry, Counter

from infra.redis.records import FinishedRecord

MAX_TENANTS = 200  # with series of their own; all others are counted together
OTHER_TENANTS = "(others)"


class TenantMetrics:
    """Counts by tenant. Requests without a tenant, as of a gateway without keys, are not counted."""

    def __init__(self, model: str, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, ["model_name", "tenant", *labels], registry=registry)

        self._model = model
        self._known: set[str] = set()
        self._requests = counter("baton:tenant_requests", "Requests of a tenant that ended, in any way", "outcome")
        self._good = counter("baton:tenant_requests_good", "Finished requests of a tenant that met their objective")
        self._tokens = counter("baton:tenant_tokens", "Tokens of a tenant's prompts and answers", "kind")
        self._refused = counter("baton:tenant_requests_refused", "Requests answered with an error", "status", "code")

    def ended(self, record: FinishedRecord) -> None:
        if not record.tenant:
            return
        labels = (self._model, self._tenant_label(record.tenant))
        self._requests.labels(*labels, record.outcome).inc()
        self._tokens.labels(*labels, "prompt").inc(record.prompt_tokens)
        self._tokens.labels(*labels, "output").inc(record.output_tokens)
        if record.good:
            self._good.labels(*labels).inc()

    def refused(self, tenant: str, status: int, code: str) -> None:
        if tenant:
            self._refused.labels(self._model, self._tenant_label(tenant), str(status), code).inc()

    def _tenant_label(self, tenant: str) -> str:
        if tenant not in self._known and len(self._known) >= MAX_TENANTS:
            return OTHER_TENANTS
        self._known.add(tenant)
        return tenant
