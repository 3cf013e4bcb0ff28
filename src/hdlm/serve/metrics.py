"""What a server counts, in Prometheus's text format."""

import threading
from collections import defaultdict
from collections.abc import Callable

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128)
COUNTERS = {
    "hdlm_requests_total": "Requests that were answered, by path and status.",
    "hdlm_prompt_tokens_total": "Tokens of prompts.",
    "hdlm_tokens_total": "Tokens that were written.",
    "hdlm_network_calls_total": "Network calls that texts took part in, each text counting its own.",
    "hdlm_left_total": "Requests whose client left before the end.",
}
HISTOGRAMS = {
    "hdlm_request_seconds": ("Seconds from a request to the end of its answer.", _SECONDS),
    "hdlm_queue_seconds": ("Seconds that a request waited for its first turn.", _SECONDS),
    "hdlm_first_token_seconds": ("Seconds from a request to its first settled token.", _SECONDS),
    "hdlm_turn_seconds": ("Seconds of a turn, one step of all texts of a model.", _SECONDS),
    "hdlm_turn_texts": ("Texts that took a step in a turn.", _TEXTS),
}
Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Counters, histograms, and gauges that are asked when somebody reads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, Labels], float] = defaultdict(float)
        self._observed = {name: [0] * (len(edges) + 1) for name, (_, edges) in HISTOGRAMS.items()}
        self._sums: dict[str, float] = defaultdict(float)
        self._gauges: dict[str, tuple[str, Callable[[], float]]] = {}

    def count(self, name: str, by: float = 1, **labels: str) -> None:
        """Add to a counter."""
        assert name in COUNTERS
        with self._lock:
            self._counts[name, tuple(sorted(labels.items()))] += by

    def observe(self, name: str, value: float) -> None:
        """Add a value to a histogram."""
        edges = HISTOGRAMS[name][1]
        place = next((n for n, edge in enumerate(edges) if value <= edge), len(edges))
        with self._lock:
            self._observed[name][place] += 1
            self._sums[name] += value

    def gauge(self, name: str, words: str, ask: Callable[[], float]) -> None:
        """Show a number that is what it is when somebody reads."""
        self._gauges[name] = (words, ask)

    def __str__(self) -> str:
        lines = []
        with self._lock:
            for name, words in COUNTERS.items():
                lines += [f"# HELP {name} {words}", f"# TYPE {name} counter"]
                found = {labels: value for (one, labels), value in self._counts.items() if one == name} or {(): 0}
                lines += [f"{name}{_shown(labels)} {_number(value)}" for labels, value in found.items()]
            for name, (words, edges) in HISTOGRAMS.items():
                lines += [f"# HELP {name} {words}", f"# TYPE {name} histogram"]
                total = 0
                for edge, count in zip([*map(str, edges), "+Inf"], self._observed[name], strict=True):
                    total += count
                    lines.append(f'{name}_bucket{{le="{edge}"}} {total}')
                lines += [f"{name}_sum {_number(self._sums[name])}", f"{name}_count {total}"]
        for name, (words, ask) in self._gauges.items():
            lines += [f"# HELP {name} {words}", f"# TYPE {name} gauge", f"{name} {_number(ask())}"]
        return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(value)


def _shown(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels) + "}" if labels else ""
