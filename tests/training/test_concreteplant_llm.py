"""The llm rewriter against a real HTTP server that speaks the chat-completions protocol."""

from __future__ import annotations

import json
import time

import pytest

from slipform_training.concreteplant import Candidate
from slipform_training.concreteplant.llm import (
    EndpointError,
    LlmOptions,
    LlmRewriter,
    new_word,
)
from slipform_training.concreteplant.rewriters import Job, Refusal
from support.chat_server import Server, change

CAPTION = "A dog on an old bench."


def job(caption=CAPTION, word="dog", sample="x", role="O"):
    start = caption.index(word)
    anchor = Candidate(word, word.lower(), start, start + len(word), role, "NN", 4.8)
    return Job(caption, [anchor], [anchor], 0, sample)


@pytest.fixture
def serve():
    servers = []

    def start(reply):
        servers.append(Server(reply))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def test_a_valid_answer_becomes_a_hard_caption(serve):
    server = serve(change)
    rewriter = LlmRewriter(
        LlmOptions(url=server.url + "/", model="small", extra={"temperature": 0, "top_p": 0.5})
    )
    (out,) = rewriter.rewrite([job()])
    assert (out.hard_caption, out.replaced, out.replacement) == (
        "A cat on an old bench.",
        "dog",
        "cat",
    )
    assert (out.edit, out.concreteness, out.rewriter) == ("O", 4.8, "llm")
    ((path, _, body, _),) = server.requests
    assert path == "/v1/chat/completions"
    assert (body["model"], body["temperature"], body["top_p"]) == ("small", 0, 0.5)
    assert body["messages"][0]["role"] == "user"
    assert isinstance(body["seed"], int)
    assert rewriter.take_notes() == {"llm requests": 1}
    assert rewriter.take_notes() == {}


def test_answers_keep_the_order_of_the_jobs_and_run_at_once(serve):
    def slow(body, number):
        time.sleep(0.02 * (number % 3))
        return change(body, word="cat")

    server = serve(slow)
    jobs = [job(f"A dog number {i} here.", sample=str(i)) for i in range(20)]
    found = LlmRewriter(LlmOptions(url=server.url, model="m", concurrency=4)).rewrite(jobs)
    assert [out.hard_caption for out in found] == [f"A cat number {i} here." for i in range(20)]
    assert 1 < server.most <= 4
    assert len({body["seed"] for _, _, body, _ in server.requests}) == 20


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        ("A cat on an old bench.", "cat"),
        ("An owl on an old bench.", "owl"),
        ("<think>\nA horse?\n</think>\n\nA cat on an old bench.", "cat"),
        ('"A cat on an old bench."', "cat"),
        ("A cat on an old bench", "cat"),
        ("A polar bear on an old bench.", "polar bear"),
        ("A owl on an old bench.", None),
        ("A dog on an old bench.", None),
        ("A bench on an old bench.", None),
        ("A cat on a new bench.", None),
        ("A cat is on an old bench.", None),
        ("Two cats on an old bench.", None),
        ("a cat on an old bench!", None),
        ("A  on an old bench.", None),
        ("A cat on an old bench.\nA pig on an old bench.", None),
        ("A very big brown cat on an old bench.", None),
        ("Sure! A cat on an old bench.", None),
        ("", None),
    ],
)
def test_only_the_word_and_its_article_may_change(answer, word):
    asked = job()
    assert new_word(asked, asked.anchors[0], answer) == word


def test_invalid_answers_are_asked_for_again_then_counted(serve):
    server = serve(lambda body, number: "A pig." if number == 1 else change(body))
    rewriter = LlmRewriter(LlmOptions(url=server.url, model="m"))
    assert rewriter.rewrite([job()])[0].replacement == "cat"
    assert rewriter.take_notes() == {"llm requests": 2, "llm answers rejected": 1}
    server = serve(lambda body, number: "A pig.")
    rewriter = LlmRewriter(LlmOptions(url=server.url, model="m", attempts=3))
    assert rewriter.rewrite([job()]) == [Refusal("the model's answers changed more than the word")]
    assert rewriter.take_notes() == {"llm requests": 3, "llm answers rejected": 3}


def test_failures_that_pass_are_tried_again(serve):
    failures = {1: (503, {}), 2: (429, {"Retry-After": "0.4"})}
    server = serve(lambda body, number: failures.get(number) or change(body))
    rewriter = LlmRewriter(LlmOptions(url=server.url, model="m"))
    assert rewriter.rewrite([job()])[0].replacement == "cat"
    assert rewriter.take_notes() == {"llm requests": 3, "llm requests tried again": 2}
    times = [when for *_, when in server.requests]
    assert times[2] - times[1] >= 0.4


def test_an_endpoint_that_stays_away_ends_the_run(serve):
    server = serve(lambda body, number: (500, {}))
    with pytest.raises(EndpointError, match="no answer after 2 tries; the last: status 500"):
        LlmRewriter(LlmOptions(url=server.url, model="m", tries=2)).rewrite([job()])
    assert len(server.requests) == 2
    server.close()
    with pytest.raises(EndpointError, match="no answer after 1 tries"):
        LlmRewriter(LlmOptions(url=server.url, model="m", tries=1)).rewrite([job()])


def test_other_refusals_are_not_tried_again(serve):
    server = serve(lambda body, number: (404, {}, b"no model m"))
    with pytest.raises(EndpointError, match="status 404: no model m"):
        LlmRewriter(LlmOptions(url=server.url, model="m")).rewrite([job()] * 3)
    assert len(server.requests) <= 3
    server = serve(lambda body, number: b'{"choices": []}')
    with pytest.raises(EndpointError, match="no chat completion"):
        LlmRewriter(LlmOptions(url=server.url, model="m")).rewrite([job()])


def test_the_rate_is_kept(serve):
    server = serve(change)
    rewriter = LlmRewriter(LlmOptions(url=server.url, model="m", rate=50, concurrency=8))
    rewriter.rewrite([job(sample=str(i)) for i in range(11)])
    times = sorted(when for *_, when in server.requests)
    # Eleven requests have ten gaps of 20 ms; the server may see single ones closer.
    assert times[-1] - times[0] > 0.15


def test_the_key_is_sent_and_never_shown(serve, monkeypatch):
    monkeypatch.setenv("SLIPFORM_LLM_KEY", "sk-secret")
    server = serve(lambda body, number: (401, {}, b"bad key sk-secret"))
    options = LlmOptions(url=server.url, model="m")
    with pytest.raises(EndpointError) as caught:
        LlmRewriter(options).rewrite([job()])
    assert server.requests[0][1]["Authorization"] == "Bearer sk-secret"
    assert "sk-secret" not in str(caught.value) + repr(options) + json.dumps(options.request())


def test_a_redirect_does_not_carry_the_key_away(serve, monkeypatch):
    monkeypatch.setenv("SLIPFORM_LLM_KEY", "sk-secret")
    other = serve(change)
    server = serve(lambda body, number: (307, {"Location": other.url + "/chat/completions"}))
    with pytest.raises(EndpointError, match="status 307"):
        LlmRewriter(LlmOptions(url=server.url, model="m")).rewrite([job()])
    assert other.requests == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "localhost:8000"}, "llm_url: expected http"),
        ({"url": "http://me:sk-secret@host/v1"}, "set SLIPFORM_LLM_KEY instead"),
        ({"concurrency": 0}, "llm_concurrency: got 0"),
        ({"rate": 0.0}, "llm_rate: got 0.0"),
        ({"timeout": 0.0}, "llm_timeout: got 0.0"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        LlmOptions(**{"url": "http://host/v1", "model": "m", **options})
    assert "sk-secret" not in str(caught.value)
