"""The gate: keys, hosts, sizes, headers, and what is counted and logged."""

import json
import logging
import re
from urllib.parse import quote

import httpx
import openai
import pytest

import specdec
from tests.apps.serving.serving import Served, serving

GOOD = {"model": "demo", "prompt": "# heapq", "max_tokens": 3, "temperature": 0}


def test_with_keys_a_request_needs_one_of_them() -> None:
    with serving(api_keys=("one", "tøo")) as locked:
        for key in ("one", "tøo"):
            headers = {"Authorization": f"Bearer {key}".encode()}
            assert locked.post("/v1/completions", GOOD, headers=headers).status_code == 200
        for headers in ({}, {"Authorization": "Bearer on"}, {"Authorization": "one"}, {"Authorization": "Basic one"}):
            for answer in (
                locked.post("/v1/completions", GOOD, headers=headers),
                httpx.get(f"{locked.url}/v1/models", headers=headers),
                httpx.get(f"{locked.url}/metrics", headers=headers),
            ):
                assert answer.status_code == 401
                assert answer.json()["error"]["code"] == "invalid_api_key"
        for path in ("/", "/health", "/playground.js"):
            assert httpx.get(f"{locked.url}{path}").status_code == 200
        with pytest.raises(openai.AuthenticationError):
            locked.openai("wrong").models.list()
        assert locked.openai("one").models.list().data


def test_a_page_that_names_the_server_otherwise_isnt_served(served: Served) -> None:
    assert httpx.get(f"{served.url}/v1/models", headers={"Host": "evil.example:80"}).status_code == 403
    for host in ("localhost", "LOCALHOST:8000", "127.0.0.1", "[::1]", "[::1]:8000"):
        assert httpx.get(f"{served.url}/v1/models", headers={"Host": host}).status_code == 200
    with serving(hosts=("model.example",)) as named:
        for host in ("model.example", "model.example:443", "localhost"):
            assert httpx.get(f"{named.url}/v1/models", headers={"Host": host}).status_code == 200
        assert httpx.get(f"{named.url}/v1/models", headers={"Host": "evil.example"}).status_code == 403


def test_pages_of_other_origins_read_nothing_unless_named(served: Served) -> None:
    origin = {"Origin": "https://page.example"}
    assert "access-control-allow-origin" not in httpx.get(f"{served.url}/v1/models", headers=origin).headers
    with serving(origins=("https://page.example",)) as open_to_one:
        answer = httpx.get(f"{open_to_one.url}/v1/models", headers=origin)
        assert answer.headers["access-control-allow-origin"] == "https://page.example"
        other = httpx.get(f"{open_to_one.url}/v1/models", headers={"Origin": "https://other.example"})
        assert "access-control-allow-origin" not in other.headers
    with serving(origins=("https://page.example",), api_keys=("one",)) as locked:
        refused = httpx.get(f"{locked.url}/v1/models", headers=origin)
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://page.example", "or its page sees no reason"


def test_the_playground_may_load_nothing_from_elsewhere(served: Served) -> None:
    answer = httpx.get(served.url)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    page = answer.text + httpx.get(f"{served.url}/playground.js").text + httpx.get(f"{served.url}/playground.css").text
    assert {*re.findall(r"https?://[^\s\"'`]+", page)} <= {"http://www.w3.org/2000/svg"}
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_health_and_metrics_tell_of_what_was_done() -> None:
    with serving() as own:
        assert httpx.get(f"{own.url}/health").json() == {"status": "ok"}
        assert httpx.head(f"{own.url}/health").status_code == 200
        own.post("/v1/completions", {**GOOD, "max_tokens": 20})
        own.post("/v1/completions", {**GOOD, "n": 0})
        text = httpx.get(f"{own.url}/metrics").text
        found = dict(re.findall(r"^([a-z]\S+) (\S+)$", text, flags=re.MULTILINE))
        assert found['specdec_requests_total{model_name="demo",path="/v1/completions",status="200"}'] == "1.0"
        assert found['specdec_requests_total{model_name="demo",path="/v1/completions",status="400"}'] == "1.0"
        assert found['vllm:generation_tokens_total{model_name="demo",strategy="AutoProposer"}'] == "20.0"
        assert found['vllm:time_to_first_token_seconds_count{model_name="demo"}'] == "1.0"
        assert found['vllm:request_success_total{finished_reason="length",model_name="demo"}'] == "1.0"
        num_prompt = len(own.generator.tokenizer("# heapq")["input_ids"])
        assert float(found['vllm:prompt_tokens_total{model_name="demo"}']) == num_prompt
        own.server.admission.is_closed = True
        assert httpx.get(f"{own.url}/health").status_code == 503
        refused = own.post("/v1/completions", GOOD)
        assert refused.status_code == 503
        assert refused.headers["retry-after"]


def test_alive_and_ready_are_told_apart() -> None:
    with serving(api_keys=("one",)) as own:
        urls = [f"{own.url}/{path}" for path in ("livez", "readyz", "health")]
        assert [httpx.get(url).status_code for url in urls] == [200, 200, 200], "without a key"
        own.server.admission.is_closed = True
        assert [httpx.get(url).status_code for url in urls] == [200, 503, 503], "it ends what it has begun"
        own.server.engine.fault = "planted"
        assert [httpx.get(url).status_code for url in urls] == [503, 503, 503]
        assert {httpx.get(url).json()["reason"] for url in urls} == {"planted"}


def test_head_is_answered_wherever_get_is(served: Served) -> None:
    paths = paths_of(served)
    assert {"/", "/health", "/livez", "/readyz", "/metrics", "/v1/models", "/playground.js"} <= {*paths}
    for path in paths:
        url = served.url + path.replace("{name}", "demo")
        head, whole = httpx.head(url), httpx.get(url)
        assert head.status_code == whole.status_code == 200, path
        assert head.content == b""
        assert head.headers["content-type"] == whole.headers["content-type"]


def paths_of(served: Served) -> list[str]:
    described = {
        path for path, kinds in httpx.get(f"{served.url}/openapi.json").json()["paths"].items() if "get" in kinds
    }
    return sorted({*described, "/", "/playground.js", "/playground.css"})


@pytest.mark.parametrize("given", ["a", "0af7651916cd43dd", "trace-id_1.2:3/4+5=@~", "x" * 128])
def test_a_request_keeps_the_id_that_its_client_gave(
    served: Served, caplog: pytest.LogCaptureFixture, given: str
) -> None:
    caplog.set_level(logging.INFO, "specdec.serving")
    logging.getLogger("specdec.serving").propagate = True
    for url in (f"{served.url}/health", f"{served.url}/v1/nothing"):
        assert httpx.get(url, headers={"X-Request-Id": given}).headers["x-request-id"] == given
    assert given in {getattr(record, "id", "") for record in caplog.records}


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, 'a"b', "a\tb", "\xe4", "a;b", "<script>", "a,b", "{}"])
def test_an_id_that_may_do_harm_in_a_log_is_replaced(served: Served, given: str) -> None:
    answer = httpx.get(f"{served.url}/health", headers={"X-Request-Id": given.encode("latin-1")})
    assert answer.status_code == 200
    assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])


@pytest.mark.parametrize(
    "ending", ["%0a", "%0A%0a", "%0d", "%00", "%09", "%7f", "%c2%85", "%0d%0aX-Injected:%201", "%1b[2J"]
)
@pytest.mark.parametrize(
    "path", ["/v1/models/demo", "/v1/models", "/health", "/livez", "/metrics", "/", "/playground.js"]
)
def test_a_control_character_makes_another_path(served: Served, path: str, ending: str) -> None:
    answer = httpx.get(f"{served.url}{path}{ending}")
    assert answer.status_code == 404
    assert answer.json()["error"]["message"].isprintable()
    assert "x-injected" not in answer.headers


@pytest.mark.parametrize(
    "name", ["demo ", " demo", "demo/", "/demo", "demo\u2028", "demo\ufffd", "DEMO", "demo%", "demo?", ""]
)
def test_only_a_models_own_name_finds_it(served: Served, name: str) -> None:
    answer = httpx.get(f"{served.url}/v1/models/{quote(name, safe='')}")
    assert answer.status_code == 404
    assert {*answer.json()["error"]} == {"message", "type", "param", "code"}


@pytest.mark.parametrize("name", ["org/model-1.5B", "my model", "a%41", "größe", "v?1#2"])
def test_a_name_is_found_however_a_client_quotes_it(name: str) -> None:
    with serving(name=name) as own:
        assert httpx.get(f"{own.url}/v1/models/{quote(name, safe='')}").json()["id"] == name
        if "?" not in name and "%" not in name:
            assert httpx.get(f"{own.url}/v1/models/{quote(name)}").json()["id"] == name


def test_metrics_say_which_model_and_version_they_are_of() -> None:
    with serving(name="org/a model") as own:
        own.post("/v1/completions", {**GOOD, "model": "org/a model"})
        text = httpx.get(f"{own.url}/metrics").text
        samples = re.findall(r"^(\S+?){(.*)} \S+$", text, flags=re.MULTILINE)
        assert len(samples) > 50
        assert all('model_name="org/a model"' in labels for _, labels in samples)
        (build,) = [labels for name, labels in samples if name == "specdec_build_info"]
        assert f'version="{specdec.__version__}"' in build
        vllms = {
            "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:prompt_tokens_total",
            "vllm:generation_tokens_total", "vllm:request_success_total", "vllm:prefix_cache_queries_total",
            "vllm:prefix_cache_hits_total", "vllm:time_to_first_token_seconds_bucket",
            "vllm:e2e_request_latency_seconds_count",
        }  # fmt: skip
        assert vllms <= {name for name, _ in samples}


def test_counts_of_drafts_agree_with_the_answers_own_figures() -> None:
    with serving() as own:
        body = {**GOOD, "prompt": "# a b c a b c a b c a", "max_tokens": 30, "proposer": "prompt_lookup:num_tokens=4"}
        figures = own.post("/v1/completions", body).json()["usage"]["speculation"]
        found = dict(re.findall(r"^(\S+?){.*} (\S+)$", httpx.get(f"{own.url}/metrics").text, flags=re.MULTILINE))
        accepted = float(found["vllm:spec_decode_num_accepted_tokens_total"])
        assert accepted == sum(figures["accepted_by_position"]) == 30 - figures["steps"]
        assert float(found["vllm:spec_decode_num_drafts_total"]) == figures["drafted_by_position"][0]
        # A chain has a candidate at each of its positions.
        assert float(found["vllm:spec_decode_num_draft_tokens_total"]) == sum(figures["drafted_by_position"])


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    from importlib.resources import files

    from specdec.apps.serving.metrics import Metrics

    dashboard = json.loads(files("specdec.apps.serving").joinpath("dashboard.json").read_text())
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"(?:specdec_|vllm:)\w+", target["expr"])
    }
    kinds = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"]}
    page = Metrics("demo").page().decode()
    there = {
        name.removesuffix("_total") + ending
        for name, kind in re.findall(r"^# TYPE (\S+) (\w+)$", page, flags=re.MULTILINE)
        for ending in kinds[kind]
    }
    assert asked <= there
    assert len(asked) > 12
    for target in (target for panel in dashboard["panels"] for target in panel["targets"]):
        unfiltered = re.findall(r"(?:specdec_|vllm:)\w+(?!\w|{model_name=)", target["expr"])
        assert not unfiltered, "servers of other models would be added up with this one's"


def test_a_request_is_a_line_of_the_log_without_its_prompt(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("specdec.serving").propagate = True
    caplog.set_level(logging.INFO, "specdec.serving")
    for logs_prompts in (False, True):
        caplog.clear()
        with serving(logs_prompts=logs_prompts) as own:
            answer = own.post("/v1/completions", {**GOOD, "prompt": "# secretword"})
        (record,) = [vars(each) for each in caplog.records if getattr(each, "event", "") == "request"]
        assert record["id"] == answer.headers["x-request-id"]
        assert (record["status"], record["completion_tokens"], record["strategy"]) == (200, 3, "auto")
        assert ("secretword" in str(record)) is logs_prompts
