"""`make links`: asks for every external link of the documents, and names those that are dead."""

from __future__ import annotations

import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from support.documents import external_links

# Sites that answer programs so may still answer people.
_REFUSALS = (401, 403, 405, 429, 503)


def state(address: str, *, timeout_s: float = 20) -> str:
    """ "ok", "refused (STATUS)" or "dead (REASON)"."""
    request = urllib.request.Request(address, headers={"User-Agent": "Mozilla/5.0"})
    try:
        with urllib.request.urlopen(request, timeout=timeout_s):
            return "ok"
    except urllib.error.HTTPError as error:
        return f"{'refused' if error.code in _REFUSALS else 'dead'} ({error.code})"
    except OSError as error:
        return f"dead ({getattr(error, 'reason', error)})"


def main(links: Mapping[str, Sequence[str]]) -> int:
    """Print every address with its state and documents; 1 if any is dead."""
    with ThreadPoolExecutor(8) as pool:
        states = dict(zip(links, pool.map(state, links), strict=True))
    for address, found in sorted(states.items()):
        print(f"{found:16} {address}  in {', '.join(sorted(set(links[address])))}")
    dead = sum(found.startswith("dead") for found in states.values())
    print(f"{len(states)} links, {dead} dead")
    return int(dead > 0)


if __name__ == "__main__":
    sys.exit(main(external_links()))
