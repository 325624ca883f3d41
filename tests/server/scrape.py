"""Reads a scrape as a plain dict, with Prometheus' own parser."""

from prometheus_client.parser import text_string_to_metric_families

Scrape = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parse(body: bytes | str) -> Scrape:
    """{(sample name, its labels without model_name): value}."""
    text = body.decode() if isinstance(body, bytes) else body
    return {
        (sample.name, frozenset((k, v) for k, v in sample.labels.items() if k != "model_name")): sample.value
        for family in text_string_to_metric_families(text) for sample in family.samples
    }


def value(scrape: Scrape, name: str, **labels: str) -> float:
    return scrape[name, frozenset(labels.items())]


def change(before: Scrape, after: Scrape, name: str, **labels: str) -> float:
    """How much a sample grew; one that was not there counts as 0."""
    key = (name, frozenset(labels.items()))
    return after[key] - before.get(key, 0.0)


def names(body: bytes | str) -> set[str]:
    """Every metric's name as queries use it, whether or not it has a sample yet."""
    found: set[str] = set()
    for line in (body.decode() if isinstance(body, bytes) else body).splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            found |= {name} if kind != "histogram" else {name + end for end in ("_bucket", "_sum", "_count")}
    return found
