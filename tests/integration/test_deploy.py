"""The files of docs/deploy do what docs/deploy.md says: the proxies run (Envoy if it is here)."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from admission.settings import Settings
from fleet.policy import TierPolicy
from tests.deployed_proxy import DEPLOY, DeployedProxy, envoy
from tests.gateway_process import KEYS, FakeEngine, GatewayProcess, assignment, chat, eventually

pytestmark = pytest.mark.slow

NAMES = ["gw-1", "gw-2"]
#: What each proxy says when a gateway is gone that had the request.
CUT = {"nginx": 502, "haproxy": 502, "envoy": 503}


@pytest.fixture(scope="module")
def engine() -> Generator[FakeEngine]:
    with FakeEngine("node-1").serving() as engine:
        yield engine


@pytest.fixture
def gateways(tmp_path: Path, engine: FakeEngine) -> Generator[list[GatewayProcess]]:
    shares = assignment([])["shares"]
    shares["globex"] = shares["globex"] | {"max_concurrent_requests": 0}
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(GatewayProcess(tmp_path / name, name=name).running()) for name in NAMES]
        for gateway in made:
            gateway.push_and_open([engine], gateway=gateway.name, shares=shares)
        yield made


@pytest.fixture(params=["nginx", "haproxy", *(["envoy"] if envoy() else [])])
def proxy(
    request: pytest.FixtureRequest, tmp_path: Path, gateways: list[GatewayProcess]
) -> Generator[DeployedProxy]:
    made = DeployedProxy(request.param, tmp_path / "proxy", [one.base_url for one in gateways])
    said = made.check()
    assert said.returncode == 0, said.stderr
    assert "warn" not in said.stderr.lower(), said.stderr
    with made.running():
        yield made


def raw(body: dict[str, Any]) -> bytes:
    """Return a request as it is on the wire."""
    payload = json.dumps(body).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: llm.example.org\r\n"
    head += f"Authorization: Bearer {KEYS['acme']}\r\nContent-Length: {len(payload)}\r\n\r\n"
    return head.encode() + payload


def test_a_proxy_passes_streams_refusals_and_ends_as_the_gateway_makes_them(
    proxy: DeployedProxy, gateways: list[GatewayProcess], engine: FakeEngine
) -> None:
    engine.served.clear()
    with proxy.client() as client:
        # Events come while the engine still produces: nothing gathers them.
        body = chat("tokens=60 pause=0.1", stream=True)
        with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.iter_lines()
            assert next(line for line in lines if line).startswith("data: {")
            assert engine.served[-1].ending == "running"
            assert list(filter(None, lines))[-1] == "data: [DONE]"
            assert answer.headers["x-request-id"].startswith("req-")
        # A client that leaves frees the engine: the proxy passes that on, too.
        with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            next(answer.iter_lines())
        eventually(lambda: engine.served[-1].ending == "aborted")
        # So does one that leaves while nothing has come yet.
        engine.served.clear()
        leaving = proxy.connection()
        leaving.sendall(raw(chat("tokens=1 pause=600", stream=True)))
        eventually(lambda: engine.served)
        leaving.close()
        eventually(lambda: engine.served[-1].ending == "aborted")
        # A refusal is passed on once and whole; the other gateway is not asked as well.
        with proxy.client("globex") as other:
            answer = other.post("/v1/chat/completions", json=chat())
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "rejected_quota_requests")
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.headers["x-ratelimit-limit-requests"] == "0"
        offered = [one.metric("rhodeck_gateway_offered_total", tenant="globex") for one in gateways]
        assert sum(offered) == 1
        # What is too large is refused by the gateway, in OpenAI's form.
        answer = client.post("/v1/chat/completions", json=chat("x" * (8 << 20)))
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
        for path in ("/admin/status", "/metrics", "/admin/../admin/status"):
            assert client.get(path).status_code == 404


def test_a_request_is_sent_once_though_its_gateway_dies_and_the_next_ones_go_to_the_other(
    proxy: DeployedProxy, gateways: list[GatewayProcess], engine: FakeEngine
) -> None:
    engine.served.clear()
    codes: list[int] = []

    def ask() -> None:
        with proxy.client() as client, contextlib.suppress(httpx.HTTPError):
            codes.append(client.post("/v1/chat/completions", json=chat("tokens=4 pause=30")).status_code)

    asking = threading.Thread(target=ask)
    asking.start()
    eventually(lambda: len(engine.served) == 1)
    busy = next(one for one in gateways if one.status()["in_flight_requests"] == 1)
    busy.kill()
    asking.join(60)
    assert codes == [CUT[proxy.name]]  # known at once, and nothing was done twice
    assert len(engine.served) == 1
    with proxy.client() as client:
        assert {client.post("/v1/chat/completions", json=chat()).status_code for _ in range(20)} == {200}
    assert len(engine.served) == 21


# -- files that are read ----------------------------------------------------------------------------


def longest_s() -> float:
    """Return the longest time from a request to the end of its answer: in a queue, then at an engine."""
    (bound,) = (one.le for one in TierPolicy.model_fields["queue_timeout_s"].metadata if hasattr(one, "le"))
    return float(bound) + Settings.model_fields["total_timeout_s"].default


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))


def manifest(kind: str, name: str) -> dict[str, Any]:
    (found,) = (one for one in manifests() if one["kind"] == kind and one["metadata"]["name"] == name)
    return found


@pytest.mark.parametrize("name", ["nginx.conf", "haproxy.cfg", "envoy.yaml"])
def test_proxies_wait_longer_than_gateways_and_close_idle_connections_before_them(name: str) -> None:
    text = (DEPLOY / name).read_text()
    assert longest_s() < 2_500
    assert "2500s" in text
    idle = {"nginx.conf": "keepalive_timeout 20s;", "haproxy.cfg": "pool-purge-delay 10s"}
    assert idle.get(name, "idle_timeout: 20s") in text
    assert Settings.model_fields["keep_alive_s"].default > 20


def test_envoy_sends_no_request_twice_and_lets_only_clients_paths_in() -> None:
    document = yaml.safe_load((DEPLOY / "envoy.yaml").read_text())
    (listener,) = document["static_resources"]["listeners"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    (routes,) = (host["routes"] for host in manager["route_config"]["virtual_hosts"])
    assert [route["match"] for route in routes] == [{"prefix": "/v1/"}, {"path": "/readyz"}]
    assert routes[0]["route"]["timeout"] == "0s"
    policy = routes[0]["route"]["retry_policy"]
    assert policy["retry_on"] == "connect-failure"
    # Of two hosts one that is gone has the fewest requests: it is drawn in 3 of 4 draws, each time anew.
    assert 0.75 ** policy["host_selection_retry_max_attempts"] < 0.001


def test_every_selector_service_and_secret_of_the_manifests_finds_what_it_names() -> None:
    pods = {
        one["metadata"]["name"]: one["spec"]["template"]
        for one in manifests()
        if one["kind"] in ("StatefulSet", "Deployment", "Job")
    }
    labels = [template["metadata"]["labels"] for template in pods.values() if "metadata" in template]
    for one in manifests():
        spec = one.get("spec", {})
        for selector in (
            spec.get("selector", {}).get("matchLabels"),
            spec.get("podSelector", {}).get("matchLabels"),
            spec["selector"] if one["kind"] == "Service" else None,
        ):
            assert selector is None or selector in labels, one["metadata"]["name"]
    for name, template in pods.items():
        spec = template["spec"]
        (container,) = spec["containers"]
        assert spec["enableServiceLinks"] is False, name  # RHODECK_GATEWAY_PORT would be tcp://10.0.0.1:80
        assert spec["securityContext"]["runAsUser"] == 10_001, name  # as the image has it
        mounted = {volume["name"] for volume in spec.get("volumes", [])}
        mounted |= {"state"} if name == "rhodeck-gateway" else set()
        assert {mount["name"] for mount in container["volumeMounts"]} == mounted, name
        ports = {port["name"] for port in container.get("ports", [])}
        probes = [container.get(f"{kind}Probe") for kind in ("startup", "liveness", "readiness")]
        assert {probe["httpGet"]["port"] for probe in probes if probe} <= ports, name
    # Commands a reader copies make the keys that are used.
    text = (DEPLOY.parent / "deploy.md").read_text()
    used = {"database_url", "admin_token", "finance_key"}
    assert {key for key in used if f"--from-file={key}" in text or f"--from-literal={key}" in text} == used
    assert json.dumps(manifests()).count('"secretName": "rhodeck"') == 5


def test_a_gateway_pod_may_drain_and_keeps_its_name_and_spool() -> None:
    spec = manifest("StatefulSet", "rhodeck-gateway")["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    env = {one["name"].removeprefix("RHODECK_GATEWAY_").lower(): one for one in container["env"]}
    assert set(env) <= set(Settings.model_fields)
    assert env["name"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
    waits_s = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] >= waits_s + float(env["drain_s"]["value"]) + 20
    (claim,) = spec["volumeClaimTemplates"]
    (mount,) = (one for one in container["volumeMounts"] if one["name"] == claim["metadata"]["name"])
    assert env["state_dir"]["value"].startswith(mount["mountPath"])
    room = int(claim["spec"]["resources"]["requests"]["storage"].removesuffix("Gi")) << 30
    assert room >= 2 * Settings.model_fields["spool_bytes"].default
    # The controller reaches a gateway that is not ready; clients do not.
    assert manifest("Service", "rhodeck-gateway")["spec"]["publishNotReadyAddresses"] is True
    assert "publishNotReadyAddresses" not in manifest("Service", "llm")["spec"]
    assert manifest("PodDisruptionBudget", "rhodeck-gateway")["spec"]["maxUnavailable"] == 1
