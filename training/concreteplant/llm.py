"""The llm rewriter: asks a language model, behind an OpenAI-compatible endpoint, for the word.

As in the paper (Qwen3 32B there). Any server of that protocol will do: vLLM, llama.cpp, a vendor's.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from slipform_training.concreteplant.anchors import Candidate
from slipform_training.concreteplant.rewrite import HardCaption, indefinite_article
from slipform_training.concreteplant.rewriters import Job, Outcome, Refusal, present_words
from slipform_training.data import Stream

KEY_VARIABLE = "SLIPFORM_LLM_KEY"

REJECTED = "the model's answers changed more than the word"

_PROMPT = """Rewrite an image caption so that it becomes false for the image, by replacing one word.

Caption: {caption}
Word to replace: {word}
Replace it by another {kind} of the same kind that is clearly not a synonym and could stand there.
Change nothing else, except "a" or "an" before the word. Answer with the rewritten caption only."""
# Two words with one of these are no word and no name, but more of a sentence.
_FUNCTION_WORDS = frozenset(
    ("a", "an", "the", "is", "are", "was", "were", "be", "and", "or", "not", "of", "with", "that")
)
_KINDS = {"O": "object", "A": "attribute", "R": "action or relation"}


class EndpointError(RuntimeError):
    """The endpoint refused a request, or did not answer after all tries."""


@dataclass(frozen=True, kw_only=True)
class LlmOptions:
    """The endpoint, and how to ask it.

    The key comes from the environment, SLIPFORM_LLM_KEY; it is sent to the endpoint alone, and
    never shown or written.

    Attributes:
        url: up to "/v1".
        model: the model's name there.
        concurrency: requests under way at once.
        rate: requests a second at most; None: no limit.
        tries: of a request that fails for a while (429, 5xx, no connection).
        attempts: answers asked for until one is valid.
        timeout: seconds.
        extra: more entries of the request's json, such as {"temperature": 0.2}.

    Raises:
        ValueError: an option out of range.
    """

    url: str
    model: str
    concurrency: int = 8
    rate: float | None = None
    tries: int = 6
    attempts: int = 2
    timeout: float = 60.0
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("llm_url: expected http://host/v1 or https://host/v1")
        if parts.username or parts.password or parts.query:
            raise ValueError(f"llm_url: expected no key in it; set {KEY_VARIABLE} instead")
        for name in ("concurrency", "tries", "attempts"):
            if getattr(self, name) < 1:
                raise ValueError(f"llm_{name}: got {getattr(self, name)}, expected at least 1")
        if self.rate is not None and not self.rate > 0:
            raise ValueError(f"llm_rate: got {self.rate}, expected more than 0")
        if not self.timeout > 0:
            raise ValueError(f"llm_timeout: got {self.timeout}, expected more than 0")

    def request(self) -> dict[str, Any]:
        """What the answers depend on, as json."""
        return {"url": self.url, "model": self.model, "extra": self.extra}


class LlmRewriter:
    """Asks the endpoint for every job, several at once; invalid answers are counted.

    Args:
        options: the endpoint.
    """

    name = "llm"

    def __init__(self, options: LlmOptions) -> None:
        self._options = options
        self._limit = _RateLimit(options.rate)
        self._opener = urllib.request.build_opener(_NoRedirect)
        self._notes: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def rewrite(self, jobs: Sequence[Job]) -> list[Outcome]:
        """One outcome a job: the first anchor, once the answer is valid.

        Raises:
            EndpointError: the endpoint refused, or gave no answer after all tries.
        """
        with ThreadPoolExecutor(self._options.concurrency) as pool:
            futures = [pool.submit(self._rewrite, job) for job in jobs]
            try:
                return [future.result() for future in futures]
            except BaseException:
                self._stopped.set()
                pool.shutdown(cancel_futures=True)
                raise

    def take_notes(self) -> dict[str, int]:
        """What was counted since the last call: requests, tries again, rejected answers."""
        with self._lock:
            notes, self._notes = dict(self._notes), Counter()
        return notes

    def _rewrite(self, job: Job) -> Outcome:
        anchor = job.anchors[0]
        prompt = _PROMPT.format(caption=job.caption, word=anchor.text, kind=_KINDS[anchor.role])
        stream = job.stream(self.name)
        for _ in range(self._options.attempts):
            answer = self._ask(prompt, stream)
            word = new_word(job, anchor, answer)
            if word is not None:
                return HardCaption(
                    hard_caption=_clean(answer, job.caption),
                    replaced=anchor.text,
                    replacement=word,
                    edit=anchor.role,
                    concreteness=anchor.concreteness,
                    rewriter=self.name,
                )
            self._note("answers rejected")
        return Refusal(REJECTED)

    def _ask(self, prompt: str, stream: Stream) -> str:
        body = {
            "model": self._options.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0.7,
            "seed": stream.below(1 << 31),
            **self._options.extra,
        }
        problem = ""
        for attempt in range(self._options.tries):
            self._limit.wait()
            if self._stopped.is_set():
                raise EndpointError("stopped")
            self._note("requests")
            try:
                return self._send(body)
            except _Later as later:
                problem, pause = str(later), later.pause
            if attempt + 1 < self._options.tries:
                self._note("requests tried again")
                backoff = min(30.0, 0.25 * 2**attempt) * stream.uniform(0.5, 1.5)
                self._stopped.wait(max(backoff, pause))
        raise EndpointError(
            f"{self._options.url}: no answer after {self._options.tries} tries; the last: {problem}"
        )

    def _send(self, body: dict[str, Any]) -> str:
        headers = {"Content-Type": "application/json"}
        key = os.environ.get(KEY_VARIABLE)
        if key:
            headers["Authorization"] = f"Bearer {key}"
        url = self._options.url.rstrip("/") + "/chat/completions"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers, method="POST")
        try:
            with self._opener.open(request, timeout=self._options.timeout) as response:
                content = response.read()
        except urllib.error.HTTPError as error:
            with error:
                detail = error.read(500).decode("utf-8", "replace")
            if key:
                detail = detail.replace(key, "[key]")
            if error.code in (408, 409, 429) or error.code >= 500:
                raise _Later(f"status {error.code}", _pause(error)) from None
            raise EndpointError(f"{url}: status {error.code}: {detail}") from None
        except (OSError, http.client.HTTPException) as error:
            raise _Later(str(error) or type(error).__name__) from None
        try:
            text = json.loads(content)["choices"][0]["message"]["content"]
        except (ValueError, KeyError, IndexError, TypeError):
            raise EndpointError(f"{url}: the answer is no chat completion") from None
        return text if isinstance(text, str) else ""

    def _note(self, what: str) -> None:
        with self._lock:
            self._notes["llm " + what] += 1


def new_word(job: Job, anchor: Candidate, answer: str) -> str | None:
    """The word that an answer put in the anchor's place; None if it changed anything else.

    An article "a" or "an" before the word may change, if it agrees. The word may be two, such as
    "polar bear", and must be none of the caption's.
    """
    text = _clean(answer, job.caption)
    before, after = job.caption[: anchor.start], job.caption[anchor.end :]
    article = re.search(r"\b(an?)(\s+)$", before, flags=re.IGNORECASE)
    if article is not None:
        head = before[: article.start()]
        match = re.fullmatch(
            re.escape(head) + r"(an?)" + article[2] + r"(?P<word>.+?)" + re.escape(after),
            text,
            flags=re.IGNORECASE,
        )
        if match is None or match[1].lower() != indefinite_article(match["word"]):
            return None
        if not text.startswith(head) or not text.endswith(after):
            return None
        word = match["word"]
    else:
        if not (text.startswith(before) and text.endswith(after)):
            return None
        word = text[len(before) : len(text) - len(after)]
        if len(before) + len(after) >= len(text):
            return None
    if not re.fullmatch(r"[^\W\d_][\w'-]*( [\w'-]+)?|\d+", word):
        return None
    words = {word.lower(), *word.lower().split()}
    if words & present_words(job) or (" " in word and words & _FUNCTION_WORDS):
        return None
    return word


def _clean(answer: str, caption: str) -> str:
    """The answer without its thoughts and quotes, and with the caption's own end."""
    text = re.sub(r"<think>.*?</think>", "", answer, flags=re.DOTALL).strip()
    for first, last in ('""', "''", "“”", "``"):
        if len(text) > 1 and text[0] == first and text[-1] == last and caption[:1] != first:
            text = text[1:-1]
    stripped = caption.strip()
    if text.endswith(".") and not stripped.endswith("."):
        text = text[:-1]
    elif stripped.endswith(".") and not text.endswith("."):
        text += "."
    start = len(caption) - len(caption.lstrip())
    return caption[:start] + text + caption[start + len(stripped) :]


class _Later(Exception):
    """A failure that may pass; `pause`: seconds that the server asked for."""

    def __init__(self, problem: str, pause: float = 0.0) -> None:
        super().__init__(problem)
        self.pause = pause


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the key to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


class _RateLimit:
    """Spaces requests evenly over all threads."""

    def __init__(self, rate: float | None) -> None:
        self._gap = 0.0 if rate is None else 1.0 / rate
        self._next = 0.0
        self._lock = threading.Lock()

    def wait(self) -> None:
        with self._lock:
            now = time.monotonic()
            turn = max(now, self._next)
            self._next = turn + self._gap
        if turn > now:
            time.sleep(turn - now)


def _pause(error: urllib.error.HTTPError) -> float:
    try:
        return min(60.0, max(0.0, float(error.headers.get("Retry-After", ""))))
    except ValueError:
        return 0.0
