"""Which prefixes of a metrics page belong to a router, proxy or gateway in front of engines: data, no code.

Looked at only when a page has no engine's series. Prevents: a router counted as a node, which would show
the sum of the fleet as one idle machine, and an operator left to guess whose page that was.
Sources: vllm-project/router, src/metrics.rs; vllm-project/production-stack, services/metrics_service;
sgl-project/sglang, sgl-router and model gateway, metrics.rs; kubernetes-sigs/gateway-api-inference-
extension, site-src/guides/metrics; ai-dynamo/dynamo, metrics guide; BerriAI/litellm, docs/proxy/prometheus;
Envoy, HAProxy, Traefik, nginx-prometheus-exporter: their documentation of statistics.
"""

from __future__ import annotations

#: Prefix as written at the start of a line -> what to call it. The first found on the page names it.
ROUTERS: tuple[tuple[bytes, str], ...] = (
    (b"vllm_router_", "vLLM router"),
    (b"vllm:current_qps", "vLLM production stack's router"),
    (b"vllm:healthy_pods_total", "vLLM production stack's router"),
    (b"sgl_router_", "SGLang router"),
    (b"smg_", "SGLang model gateway"),
    (b"dynamo_frontend_", "Dynamo frontend"),
    (b"inference_pool_", "Gateway API endpoint picker"),
    (b"inference_extension_", "Gateway API endpoint picker"),
    (b"litellm_", "LiteLLM proxy"),
    (b"envoy_", "Envoy"),
    (b"haproxy_", "HAProxy"),
    (b"traefik_", "Traefik"),
    (b"nginx_", "nginx exporter"),
    (b"nginxexporter_", "nginx exporter"),
)


def router_of(body: bytes) -> str | None:
    """Return whose page this is, None for no router's. Looks at line starts only."""
    for prefix, name in ROUTERS:
        if body.startswith(prefix) or b"\n" + prefix in body or b"\n# TYPE " + prefix in body:
            return name
    return None
